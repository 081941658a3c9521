//! What whole answers hold: log-probabilities, samples, seeds, limits of the context, the small endpoints.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use std::collections::HashSet;

use common::{Server, finish_reasons, joined, letters, saying, script, short_context, streamed, text_of};
use frizzen_engine::mock::{Content, MockWorker};
use serde_json::{Value, json};

/// The members of both.
fn with(fields: &Value, more: &Value) -> Value {
    let mut all = fields.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

fn bytes_of(entries: &Value) -> Vec<u8> {
    let entries = entries.as_array().unwrap().iter();
    entries
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect()
}

#[test]
fn bytes_of_chat_logprobs_join_to_the_content_vllm_34875_vllm_19177() {
    let text = "“x” 🌶 是谢谢";
    let server = Server::start(script(text));
    let fields = json!({"logprobs": true, "top_logprobs": 5, "max_tokens": 40});
    let whole = server.client().chat(&fields).ok();
    let entries = &whole["choices"][0]["logprobs"]["content"];
    assert_eq!(String::from_utf8(bytes_of(entries)).unwrap(), text);
    assert_eq!(
        entries.as_array().unwrap().len() as u64,
        whole["usage"]["completion_tokens"].as_u64().unwrap()
    );
    for entry in entries.as_array().unwrap() {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        assert!(top.iter().all(|other| !other["token"].as_str().unwrap().is_empty()), "{entry}");
        assert_eq!(entry["logprob"], json!(-0.5));
    }
}

#[test]
fn streamed_logprobs_are_those_of_the_answer_sglang_28601() {
    let server = Server::start(script("😀 stop here"));
    let fields = json!({"logprobs": true, "top_logprobs": 1, "max_tokens": 40, "stop": ["herX"]});
    let whole = server.client().chat(&fields).ok()["choices"][0]["logprobs"]["content"].clone();
    let events = server.client().chat(&streamed(&fields)).events();
    let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(whole, json!(parts.flatten().collect::<Vec<_>>()));

    let body = json!({"prompt": "x", "logprobs": 1, "max_tokens": 40});
    let whole = server.client().completion(&body).ok()["choices"][0]["logprobs"].clone();
    let events = server.client().completion(&streamed(&body)).events();
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"][list].as_array());
        assert_eq!(whole[list], json!(parts.flatten().collect::<Vec<_>>()), "{list}");
    }
}

#[test]
fn listed_tokens_follow_the_likeliest_ones_and_stand_once() {
    let server = Server::start(script("hello"));
    let fields = json!({
        "logprob_token_ids": [40, 7, 40], "return_tokens_as_token_ids": true, "max_tokens": 3, "n": 2, "seed": 1
    });
    let whole = server.client().chat(&fields).ok();
    for choice in whole["choices"].as_array().unwrap() {
        for entry in choice["logprobs"]["content"].as_array().unwrap() {
            let names: Vec<_> =
                entry["top_logprobs"].as_array().unwrap().iter().map(|top| &top["token"]).collect();
            assert_eq!(
                names,
                ["token_id:40", "token_id:7"],
                "in the order of the request, without logprobs: true"
            );
        }
    }
    let best = json!({"logprobs": true, "top_logprobs": 1});
    let together = server.client().chat(&with(&fields, &best)).ok();
    let first = &together["choices"][0]["logprobs"]["content"][0];
    let names: Vec<_> = first["top_logprobs"].as_array().unwrap().iter().map(|top| &top["token"]).collect();
    assert_eq!(names, [&first["token"], &json!("token_id:40"), &json!("token_id:7")]);

    let chosen = first["token"].as_str().unwrap().trim_start_matches("token_id:").parse::<u32>().unwrap();
    let same = with(&with(&fields, &best), &json!({"logprob_token_ids": [chosen]}));
    let first = &server.client().chat(&same).ok()["choices"][0]["logprobs"]["content"][0];
    assert_eq!(first["top_logprobs"].as_array().unwrap().len(), 1, "{first}");

    let body = json!({"prompt": "x", "logprob_token_ids": [40], "echo": true, "max_tokens": 1,
                      "return_tokens_as_token_ids": true});
    let tops = server.client().completion(&body).ok()["choices"][0]["logprobs"]["top_logprobs"].clone();
    let last = tops.as_array().unwrap().last().unwrap().as_object().unwrap();
    assert!(last.contains_key("token_id:40") && last.len() == 2, "{tops}");
}

#[test]
fn too_many_listed_tokens_are_refused_with_the_limit() {
    let server = Server::start(letters());
    let ids: Vec<u32> = (0..21).collect();
    let answer = server.client().chat(&json!({"logprob_token_ids": ids}));
    let (status, _, param) = answer.error();
    assert_eq!((status, param.as_deref()), (400, Some("logprob_token_ids")));
    assert!(answer.text().contains("at most 20 together, got 21"), "{}", answer.text());
}

#[test]
fn the_prompt_is_shown_as_text_and_each_of_its_tokens_has_its_characters() {
    let server = Server::start(script("hi"));
    let asked = json!({"return_prompt_text": true, "return_token_offsets": true, "return_token_ids": true});
    let chat = server.client().chat(&asked).ok();
    let text: Vec<char> = chat["prompt_text"].as_str().unwrap().chars().collect();
    let offsets: Vec<[usize; 2]> = serde_json::from_value(chat["prompt_token_offsets"].clone()).unwrap();
    assert_eq!(offsets.len(), chat["prompt_token_ids"].as_array().unwrap().len());
    let joined: String = offsets.iter().flat_map(|[start, end]| &text[*start..*end]).collect();
    assert_eq!(joined, text.iter().collect::<String>());
    let events = server.client().chat(&streamed(&asked)).events();
    assert_eq!(events[0]["prompt_text"], chat["prompt_text"]);
    assert_eq!(events[0]["prompt_token_offsets"], chat["prompt_token_offsets"]);
    assert!(events[1..].iter().all(|event| event["prompt_text"].is_null()));

    let several = with(&asked, &json!({"prompt": ["a b", "é語"], "max_tokens": 1}));
    let choices = server.client().completion(&several).ok()["choices"].clone();
    assert_eq!([&choices[0]["prompt_text"], &choices[1]["prompt_text"]], ["a b", "é語"]);
    let last = choices[1]["prompt_token_offsets"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last[1], json!(2), "characters, not bytes: {last}");
}

#[test]
fn zero_alternatives_are_the_chosen_values_only_lmdeploy_4121() {
    let server = Server::start(script("ab"));
    let entries =
        server.client().chat(&json!({"logprobs": true})).ok()["choices"][0]["logprobs"]["content"].clone();
    assert!(entries.as_array().unwrap().iter().all(|entry| entry["top_logprobs"] == json!([])), "{entries}");
    let none = server.client().chat(&json!({})).ok()["choices"][0]["logprobs"].clone();
    assert_eq!(none, Value::Null);
    let list =
        server.client().completion(&json!({"prompt": "x", "logprobs": 0})).ok()["choices"][0]["logprobs"]
            .clone();
    assert_eq!(list["tokens"], json!(["a", "b", "<|end|>"]));
    assert_eq!(list["token_logprobs"], json!([-0.5, -0.5, -0.5]));
    assert_eq!(list["top_logprobs"][0], json!({"a": -0.5}));
    assert_eq!(list["text_offset"], json!([0, 1, 2]));
}

#[test]
fn echo_shows_the_prompt_with_its_logprobs() {
    let server = Server::start(script("cd"));
    let body = json!({"prompt": "aé", "echo": true, "logprobs": 1, "max_tokens": 2});
    let choice = server.client().completion(&body).ok()["choices"][0].clone();
    assert_eq!(choice["text"], "aécd");
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "bytes:\\xc3", "bytes:\\xa9", "c", "d"]));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5, -0.5, -0.5, -0.5]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 1, 2, 3]));
    let events = server.client().completion(&streamed(&body)).events();
    assert_eq!(joined(&events, 0), "aécd");
    assert_eq!(finish_reasons(&events, 0), ["length"]);
}

#[test]
fn no_tokens_with_echo_is_the_prompt_alone_vllm_39556() {
    let server = Server::start(letters());
    let body =
        json!({"prompt": "a b c", "echo": true, "max_tokens": 0, "logprobs": 1, "return_token_ids": true});
    let whole = server.client().completion(&body).ok();
    let choice = &whole["choices"][0];
    assert_eq!((choice["text"].clone(), choice["token_ids"].clone()), (json!("a b c"), json!([])));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    assert_eq!(joined(&server.client().completion(&streamed(&body)).events(), 0), "a b c");
    let error = server.client().completion(&json!({"prompt": "a", "max_tokens": 0})).error();
    assert_eq!(error, (400, "BadRequestError".to_owned(), Some("max_tokens".to_owned())));
}

#[test]
fn prompt_logprobs_begin_with_null() {
    let server = Server::start(script("x"));
    let body = json!({"prompt": "ab", "prompt_logprobs": 2});
    let prompt = server.client().completion(&body).ok()["choices"][0]["prompt_logprobs"].clone();
    assert_eq!(prompt[0], Value::Null);
    assert_eq!(prompt[1]["98"], json!({"logprob": -0.5, "rank": 1, "decoded_token": "b"}));
    assert_eq!(prompt[1]["99"], json!({"logprob": -1.5, "rank": 2, "decoded_token": "c"}));
    assert_eq!(prompt.as_array().unwrap().len(), 2);
    let chat = server.client().chat(&json!({"prompt_logprobs": 0, "return_token_ids": true})).ok();
    let count = chat["prompt_token_ids"].as_array().unwrap().len();
    assert_eq!(chat["prompt_logprobs"].as_array().unwrap().len(), count);
    let refused = server.client().completion(&streamed(&body)).error();
    assert_eq!((refused.0, refused.2.as_deref()), (400, Some("prompt_logprobs")));
}

#[test]
fn tokens_can_be_named_by_their_ids() {
    let server = Server::start(script("ab"));
    let fields = json!({"logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": true});
    let entry = server.client().chat(&fields).ok()["choices"][0]["logprobs"]["content"][1].clone();
    assert_eq!(
        (&entry["token"], &entry["top_logprobs"][0]["token"]),
        (&json!("token_id:98"), &json!("token_id:98"))
    );
}

#[test]
fn samples_are_their_own_and_the_same_both_ways_vllm_16863() {
    let server = Server::start(letters());
    let body = json!({"prompt": "x", "n": 3, "temperature": 1, "max_tokens": 32, "seed": 7});
    let whole = server.client().completion(&body).ok();
    let texts: Vec<String> = (0..3).map(|index| text_of(&whole, index)).collect();
    assert_eq!(texts.iter().collect::<HashSet<_>>().len(), 3);
    let events = server.client().completion(&streamed(&body)).events();
    for (index, text) in texts.iter().enumerate() {
        assert_eq!(joined(&events, index), *text);
        assert_eq!(whole["choices"][index]["index"], index);
        // Sample i is the request with the seed plus i.
        let alone = json!({"prompt": "x", "temperature": 1, "max_tokens": 32, "seed": 7 + index});
        assert_eq!(text_of(&server.client().completion(&alone).ok(), 0), *text);
    }
    assert_eq!(whole["usage"]["completion_tokens"], 96);
    assert_eq!(whole["usage"]["prompt_tokens"], 1);
    let unseeded = json!({"prompt": "x", "n": 2, "temperature": 1, "max_tokens": 32});
    let unseeded = server.client().completion(&unseeded).ok();
    assert_ne!(text_of(&unseeded, 0), text_of(&unseeded, 1));
}

#[test]
fn choices_of_several_prompts_are_prompt_major() {
    let server = Server::start(saying(Content::Echo));
    let body = json!({"prompt": ["aa", "bb"], "n": 2, "max_tokens": 2});
    let whole = server.client().completion(&body).ok();
    let texts: Vec<String> = (0..4).map(|index| text_of(&whole, index)).collect();
    assert_eq!(texts, ["aa", "aa", "bb", "bb"]);
    assert_eq!(whole["usage"]["prompt_tokens"], 4);
    let events = server.client().completion(&streamed(&body)).events();
    assert_eq!(joined(&events, 2), "bb");
}

#[test]
fn one_bad_prompt_runs_none_vllm_45035() {
    let server = Server::start(letters());
    let before = server.metric(&common::series("prompt_tokens_total"));
    let answer = server.client().completion(&json!({"prompt": ["fine", ""]}));
    assert_eq!(answer.error().0, 400);
    server.quiesce();
    assert_eq!(server.metric(&common::series("prompt_tokens_total")), before);
}

#[test]
fn equal_seeds_give_equal_texts_in_any_batch_tt_metal_53802() {
    let server = Server::start(letters());
    let body = json!({"prompt": "x", "temperature": 1, "max_tokens": 24, "seed": 0});
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (client, body) = (server.client(), body.clone());
            std::thread::spawn(move || text_of(&client.completion(&body).ok(), 0))
        })
        .collect();
    let texts: HashSet<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(texts.len(), 1);
}

#[test]
fn cached_tokens_are_whole_blocks_and_never_the_requests_own_vllm_ascend_9911_sglang_5525() {
    let server = Server::start(letters());
    let prompt = "p".repeat(600);
    let cached = |n: u32| {
        let usage =
            server.client().completion(&json!({"prompt": prompt, "n": n, "max_tokens": 2})).ok()["usage"]
                .clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    // Four samples of a cold prompt share its blocks, and none of them came from a cache.
    assert_eq!(cached(4), 0);
    let hits = server.metric(&common::series("prefix_cache_hits_total"));
    let warm = cached(1);
    assert!(warm > 0 && warm < 600 && warm.is_multiple_of(16), "{warm}");
    assert_eq!(server.metric(&common::series("prefix_cache_hits_total")) - hits, warm as f64);
    assert_eq!(server.client().post("/reset_prefix_cache", &json!({})).ok(), json!({"reset": true}));
    assert_eq!(cached(1), 0);
}

#[test]
fn a_salt_separates_prefixes() {
    let server = Server::start(letters());
    let cached = |salt: &str| {
        let body = json!({"prompt": "p".repeat(64), "max_tokens": 1, "cache_salt": salt});
        server.client().completion(&body).ok()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!((cached("a"), cached("b"), cached("a")), (json!(0), json!(0), json!(48)));
}

#[test]
fn the_context_is_a_limit_with_numbers_vllm_33418() {
    let server = Server::start(MockWorker::new(short_context(64)).saying(Content::Echo));
    let complete = |length: usize, max_tokens: Value| {
        server.client().completion(&json!({"prompt": "p".repeat(length), "max_tokens": max_tokens}))
    };
    assert_eq!(complete(63, json!(1)).ok()["usage"]["completion_tokens"], 1);
    for (length, max_tokens) in [(64, json!(1)), (65, json!(1)), (64, Value::Null), (10_000, json!(4))] {
        let refused = complete(length, max_tokens);
        assert_eq!(refused.error(), (400, "BadRequestError".to_owned(), Some("prompt".to_owned())));
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains("64 tokens"), "{message}");
        assert!(length > 1000 || message.contains(&length.to_string()), "{message}");
    }
    let ids = server.client().completion(&json!({"prompt": vec![7; 65]}));
    assert_eq!(ids.error().0, 400);
}

#[test]
fn max_tokens_beyond_the_context_are_clamped_on_every_route_vllm_42474() {
    let server = Server::start(MockWorker::new(short_context(64)).saying(Content::Echo));
    let whole = server.client().completion(&json!({"prompt": "p".repeat(60), "max_tokens": 4096})).ok();
    assert_eq!(
        (&whole["usage"]["completion_tokens"], &whole["choices"][0]["finish_reason"]),
        (&json!(4), &json!("length"))
    );
    let server = Server::start(MockWorker::new(short_context(64)).saying(Content::Alphabet([97, 98].into())));
    for fields in [json!({"max_tokens": 4096}), json!({"max_completion_tokens": 4096}), json!({})] {
        let whole = server.client().chat(&fields).ok();
        assert_eq!(whole["usage"]["total_tokens"], 64);
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn a_prompt_is_truncated_on_the_side_asked_for_vllm_22635() {
    let server = Server::start(MockWorker::new(short_context(64)).saying(Content::Echo));
    let shown = |fields: Value| {
        let mut body = json!({"prompt": format!("{}z", "a".repeat(99)), "max_tokens": 1});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let whole = server.client().completion(&body).ok();
        (text_of(&whole, 0), whole["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    assert_eq!(shown(json!({"truncate_prompt_tokens": 1})), ("z".to_owned(), 1));
    assert_eq!(shown(json!({"truncate_prompt_tokens": 2})), ("a".to_owned(), 2));
    assert_eq!(shown(json!({"truncate_prompt_tokens": -1})).1, 63);
    assert_eq!(shown(json!({"truncate_prompt_tokens": 1, "truncation_side": "right"})), ("a".to_owned(), 1));
}

#[test]
fn min_tokens_hold_stop_strings_and_stop_tokens_back() {
    let server = Server::start(script("stop stop"));
    let body = json!({"prompt": "x", "max_tokens": 9, "stop": ["stop"], "min_tokens": 5});
    assert_eq!(text_of(&server.client().completion(&body).ok(), 0), "stop ");
    let body = json!({"prompt": "x", "max_tokens": 9, "min_tokens": 10});
    let error = server.client().completion(&body).error();
    assert_eq!((error.0, error.2.as_deref()), (400, Some("min_tokens")));
}

#[test]
fn a_message_is_continued_where_it_ends() {
    let server = Server::start(saying(Content::Echo));
    let prompt = |fields: Value| {
        let mut body =
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so "}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let tokens = server.client().post("/tokenize", &body).ok()["tokens"].clone();
        server.client().post("/detokenize", &json!({"tokens": tokens})).ok()["prompt"].clone()
    };
    let open = "<|start|>user\nq<|end|>\n<|start|>assistant\nso ";
    assert_eq!(prompt(json!({"continue_final_message": true})), open);
    assert_eq!(prompt(json!({})), format!("{open}<|end|>\n<|start|>assistant\n"));
    assert_eq!(prompt(json!({"add_generation_prompt": false})), format!("{open}<|end|>\n"));
}

#[test]
fn chat_and_tokenize_see_the_same_ids_vllm_55288() {
    let server = Server::start(script("x"));
    let ids = server.client().post("/tokenize", &common::chat_body(&json!({}))).ok();
    let chat = server.client().chat(&json!({"return_token_ids": true})).ok();
    assert_eq!(ids["tokens"], chat["prompt_token_ids"]);
    assert_eq!(ids["count"], chat["usage"]["prompt_tokens"]);
    assert_eq!(ids["max_model_len"], 4096);
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let server = Server::start(script("x"));
    let text = "a\u{0}é😀 <|end|>";
    let ids = server.client().post("/tokenize", &json!({"prompt": text, "return_token_strs": true})).ok();
    assert_eq!(ids["token_strs"][0], "a");
    assert_eq!(ids["tokens"].as_array().unwrap().last(), Some(&json!(257)));
    assert_eq!(
        server.client().post("/detokenize", &json!({"tokens": ids["tokens"]})).ok(),
        json!({"prompt": text, "text": text})
    );
    for bad in [json!([-1]), json!([259]), json!([4_294_967_295_u64]), json!([1.5]), json!("x"), Value::Null]
    {
        let error = server.client().post("/detokenize", &json!({"tokens": bad})).error();
        assert_eq!((error.0, error.2.as_deref()), (400, Some("tokens")));
    }
    assert_eq!(server.client().post("/tokenize", &json!({})).error().2.as_deref(), Some("messages"));
}

#[test]
fn models_are_listed_under_every_name() {
    let server = Server::with(&["--served-model-name", "org/first", "second"], script("x"));
    let list = server.client().get("/v1/models").ok();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["org/first", "second"]);
    assert_eq!(list["data"][0]["max_model_len"], 4096);
    assert_eq!(server.client().get("/v1/models/org/first").ok()["id"], "org/first");
    assert_eq!(server.client().get("/v1/models/third").error().0, 404);
    assert_eq!(server.client().chat(&json!({"model": "second"})).ok()["model"], "second");
    assert_eq!(server.client().chat(&json!({})).ok()["model"], "org/first");
    let error = server.client().chat(&json!({"model": "gpt-4"})).error();
    assert_eq!(error, (404, "NotFoundError".to_owned(), Some("model".to_owned())));
}

#[test]
fn priority_needs_its_policy() {
    let server = Server::with(&["--scheduling-policy", "priority"], script("x"));
    assert_eq!(server.client().chat(&json!({"priority": -3})).status, 200);
    let plain = Server::start(script("x"));
    assert_eq!(plain.client().chat(&json!({"priority": -3})).error().2.as_deref(), Some("priority"));
}

#[test]
fn a_tiny_temperature_is_greedy_sglang_28153() {
    let server = Server::start(letters());
    let text = |temperature: f64| {
        text_of(&server.client().completion(&json!({"prompt": "x", "temperature": temperature})).ok(), 0)
    };
    assert_eq!(text(1e-320), text(0.0));
    assert_eq!(text(1e-6), text(0.0));
}

#[test]
fn equal_prompts_prefixes_and_any_lengths_run_together_mistral_rs_1376() {
    let server = Server::start(letters());
    let text = |length: usize| {
        let body = json!({"prompt": "p".repeat(length), "max_tokens": 12, "temperature": 0});
        text_of(&server.client().completion(&body).ok(), 0)
    };
    let alone: Vec<String> = (1..=200).step_by(29).map(text).collect();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            let text = &text;
            let threads: Vec<_> =
                (1..=200).step_by(29).map(|length| scope.spawn(move || text(length))).collect();
            let together: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(together, alone);
        });
    }
}

#[test]
fn ids_of_a_conversation_stand_in_for_its_tokenisation() {
    let server = Server::start(saying(Content::Chain));
    let asked = json!({"max_tokens": 20, "return_token_ids": true, "temperature": 0});
    let first = server.client().chat(&asked).ok();
    let known = first["prompt_token_ids"].clone();
    let with = |fields: Value| {
        let mut fields = fields;
        fields.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        server.client().chat(&fields)
    };
    let again = with(json!({"prompt_token_ids": known})).ok();
    assert_eq!(again["choices"], first["choices"]);
    // They are what the model gets, whatever the messages would have become; the messages are checked all the same.
    let other = with(json!({"prompt_token_ids": [97, 98]})).ok();
    assert_eq!((&other["prompt_token_ids"], &other["usage"]["prompt_tokens"]), (&json!([97, 98]), &json!(2)));
    let cut = with(json!({"prompt_token_ids": [97, 98, 99], "truncate_prompt_tokens": 1})).ok();
    assert_eq!(cut["prompt_token_ids"], json!([99]));
    for (fields, param) in [
        (json!({"prompt_token_ids": []}), "prompt_token_ids"),
        (json!({"prompt_token_ids": [99999]}), "prompt_token_ids"),
        (json!({"prompt_token_ids": "a"}), "prompt_token_ids"),
        (json!({"prompt_token_ids": vec![97; 5000]}), "prompt_token_ids"),
        (json!({"prompt_token_ids": [97], "messages": [{"role": "user"}]}), "messages"),
    ] {
        assert_eq!(with(fields).error().2.as_deref(), Some(param));
    }
}
