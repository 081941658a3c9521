//! Embeddings, pooling, classification, scores and rankings over the mock: forms, encodings, refusals.

#![allow(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

mod common;

use common::Server;
use frizzen_core::PoolingInfo;
use frizzen_core::pooling::{cosine, late_interaction};
use frizzen_engine::WorkerInfo;
use frizzen_engine::mock::{Fault, MockWorker};
use frizzen_sched::sim::ChainModel;
use frizzen_server::mock;
use serde_json::{Value, json};

const SIZE: u32 = 5;

fn server(pooling: PoolingInfo) -> Server {
    Server::start(MockWorker::new(WorkerInfo { pooling: Some(pooling), ..mock::info() }))
}

/// What the mock makes of a text: one token per byte, nothing added.
fn raw(text: &str) -> Vec<f32> {
    ChainModel::vector(&text.bytes().map(u32::from).collect::<Vec<_>>(), SIZE as usize)
}

fn unit(text: &str) -> Vec<f32> {
    mock::embeds(SIZE).embedding(raw(text), None, None)
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

fn from_base64(value: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap()
}

fn singles(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn embeddings_have_openais_form_for_every_kind_of_input() {
    let server = server(mock::embeds(SIZE));
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    for (input, texts) in [
        (json!("hello"), &["hello"][..]),
        (json!(["hello", "b"]), &["hello", "b"]),
        (json!(ids("hello")), &["hello"]),
        (json!([ids("hello"), ids("b")]), &["hello", "b"]),
        (json!(["hello", ids("b")]), &["hello", "b"]),
    ] {
        let body = json!({"model": "mock", "input": input, "user": "me"});
        let answer = server.client().post("/v1/embeddings", &body).ok();
        assert!(answer["id"].as_str().unwrap().starts_with("embd-"));
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("mock")));
        assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
        let tokens: usize = texts.iter().map(|text| text.len()).sum();
        assert_eq!(answer["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), texts.len());
        for (index, (entry, text)) in data.iter().zip(texts).enumerate() {
            assert_eq!((&entry["index"], &entry["object"]), (&json!(index), &json!("embedding")));
            assert_eq!(floats(&entry["embedding"]), unit(text));
        }
    }
    server.quiesce();
}

#[test]
fn base64_is_little_endian_single_precision_sglang_28803() {
    let server = server(mock::embeds(SIZE));
    let post = |more: Value| {
        let mut body = json!({"input": ["a", "bc"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.client().post("/v1/embeddings", &body)
    };
    let plain = post(json!({})).ok();
    assert_eq!(plain["data"], post(json!({"encoding_format": "float"})).ok()["data"]);
    let encoded = post(json!({"encoding_format": "base64"})).ok();
    for (entry, text) in encoded["data"].as_array().unwrap().iter().zip(["a", "bc"]) {
        assert_eq!(singles(&from_base64(&entry["embedding"])), unit(text));
    }
    let big = post(json!({"encoding_format": "base64", "endianness": "big"})).ok();
    let mut swapped = from_base64(&big["data"][0]["embedding"]);
    swapped.chunks_mut(4).for_each(<[u8]>::reverse);
    assert_eq!(swapped, from_base64(&encoded["data"][0]["embedding"]));
    for (dtype, size) in [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)] {
        let answer = post(json!({"encoding_format": "base64", "embed_dtype": dtype})).ok();
        assert_eq!(from_base64(&answer["data"][0]["embedding"]).len(), SIZE as usize * size, "{dtype}");
        let answer = post(json!({"embed_dtype": dtype})).ok();
        assert_eq!(answer["data"], plain["data"], "numbers in JSON have no type");
    }
    for (field, value) in [("encoding_format", "hex"), ("embed_dtype", "int8"), ("endianness", "middle")] {
        let refused = post(json!({ field: value })).error();
        assert_eq!(refused, (400, "BadRequestError".to_owned(), Some(field.to_owned())));
    }
}

#[test]
fn bytes_stand_in_input_order_and_the_header_says_where() {
    let server = server(mock::embeds(SIZE));
    for path in ["/v1/embeddings", "/pooling"] {
        let body = json!({"input": ["a", "bc"], "encoding_format": "bytes", "embed_dtype": "float32"});
        let answer = server.client().post(path, &body);
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        let metadata: Value = serde_json::from_str(answer.header("metadata").unwrap()).unwrap();
        assert_eq!(metadata["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
        assert_eq!(metadata["model"], "mock");
        for (entry, (index, text)) in metadata["data"].as_array().unwrap().iter().zip([(0, "a"), (1, "bc")]) {
            let (start, end) =
                (entry["start"].as_u64().unwrap() as usize, entry["end"].as_u64().unwrap() as usize);
            assert_eq!(singles(&answer.body[start..end]), unit(text));
            assert_eq!((&entry["index"], &entry["shape"]), (&json!(index), &json!([SIZE])));
            assert_eq!((&entry["embed_dtype"], &entry["endianness"]), (&json!("float32"), &json!("little")));
        }
        let only = json!({"input": ["a", "bc"], "encoding_format": "bytes_only"});
        let only = server.client().post(path, &only);
        assert_eq!(
            (only.body, only.headers.iter().any(|(name, _)| name == "metadata")),
            (answer.body, false)
        );
    }
}

#[test]
fn a_header_that_clients_would_refuse_is_not_sent() {
    let server = server(mock::embeds(1));
    let body = json!({"input": vec!["a"; 1000], "encoding_format": "bytes"});
    let refused = server.client().post("/v1/embeddings", &body);
    assert!(refused.text().contains("bytes_only has no such header"), "{}", refused.text());
    assert_eq!(refused.status, 400);
}

#[test]
fn dimensions_are_cut_and_normalised_anew_only_where_the_model_was_trained_for_it() {
    let trained = server(PoolingInfo { dimensions: Some(Vec::new()), ..mock::embeds(SIZE) });
    let post = |body: Value| trained.client().post("/v1/embeddings", &body);
    let cut = floats(&post(json!({"input": "abc", "dimensions": 2})).ok()["data"][0]["embedding"]);
    assert_eq!(cut, mock::embeds(SIZE).embedding(raw("abc"), Some(2), None));
    let long = floats(&post(json!({"input": "abc", "normalize": false})).ok()["data"][0]["embedding"]);
    assert_eq!(long, raw("abc"));
    for dimensions in [json!(0), json!(-1), json!(6), json!(1.5)] {
        let refused = post(json!({"input": "abc", "dimensions": dimensions})).error();
        assert_eq!((refused.0, refused.2.as_deref()), (400, Some("dimensions")));
    }
    let plain = server(mock::embeds(SIZE));
    let refused = plain.client().post("/v1/embeddings", &json!({"input": "abc", "dimensions": 2}));
    assert!(refused.text().contains("not trained"), "{}", refused.text());
}

#[test]
fn inputs_that_do_not_fit_are_refused_with_the_field() {
    let server = server(mock::embeds(SIZE));
    for input in [
        json!(null),
        json!([]),
        json!([[]]),
        json!(""),
        json!(["a", ""]),
        json!([-1]),
        json!([259]),
        json!([4_294_967_295_u64]),
        json!([5_279_552_648_203_111_001_u64]),
        json!([1.5]),
        json!([true]),
        json!({"text": "a"}),
        json!("x".repeat(4097)),
        json!(["a", "x".repeat(5000)]),
        json!(vec!["a"; 4097]),
    ] {
        let answer = server.client().post("/v1/embeddings", &json!({ "input": input }));
        let (status, _, param) = answer.error();
        assert_eq!((status, param.as_deref()), (400, Some("input")), "{input} {}", answer.text());
    }
    let whole = server.client().post("/v1/embeddings", &json!({"input": "x".repeat(4096)})).ok();
    assert_eq!(whole["usage"]["prompt_tokens"], 4096);
    let both = json!({"messages": [{"role": "user", "content": "a"}], "input": "a"});
    assert_eq!(server.client().post("/v1/embeddings", &both).error().2.as_deref(), Some("input"));
    assert_eq!(
        server.client().post("/v1/embeddings", &json!({"input": "a", "model": "other"})).error().0,
        404
    );
    server.quiesce();
}

#[test]
fn truncation_keeps_the_beginning_unless_told_otherwise() {
    let server = server(mock::embeds(SIZE));
    let embed = |more: Value| {
        let mut body = json!({"input": "abcdef"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.client().post("/v1/embeddings", &body).ok();
        floats(&answer["data"][0]["embedding"])
    };
    assert_eq!(embed(json!({"truncate_prompt_tokens": 2})), unit("ab"));
    assert_eq!(embed(json!({"truncate_prompt_tokens": 2, "truncation_side": "left"})), unit("ef"));
    assert_eq!(embed(json!({"truncate_prompt_tokens": -1})), unit("abcdef"));
    for limit in [-2, 0, 4097] {
        let body = json!({"input": "abcdef", "truncate_prompt_tokens": limit});
        let (status, _, param) = server.client().post("/v1/embeddings", &body).error();
        assert_eq!((status, param.as_deref()), (400, Some("truncate_prompt_tokens")));
    }
}

#[test]
fn pooling_shows_what_the_models_vectors_are_and_cuts_none() {
    let embeds = server(mock::embeds(SIZE));
    let answer = embeds.client().post("/pooling", &json!({"input": "ab"})).ok();
    assert_eq!(floats(&answer["data"][0]["data"]), unit("ab"));
    assert_eq!(answer["data"][0]["object"], "pooling");
    for (body, status, param) in [
        (json!({"input": "ab", "dimensions": 2}), 400, "dimensions"),
        (json!({"input": "ab", "task": "classify"}), 400, "task"),
        (json!({"input": "ab", "task": "token_classify"}), 400, "task"),
        (json!({"input": "ab", "task": "guess"}), 400, "task"),
    ] {
        let refused = embeds.client().post("/pooling", &body).error();
        assert_eq!((refused.0, refused.2.as_deref()), (status, Some(param)));
    }
    let classifies = server(mock::classifies(SIZE));
    let answer = classifies.client().post("/pooling", &json!({"input": "ab", "task": "classify"})).ok();
    assert_eq!(floats(&answer["data"][0]["data"]), mock::classifies(SIZE).probabilities(raw("ab"), None));
}

/// What the mock makes of each token.
fn each(text: &str) -> Vec<Vec<f32>> {
    (1..=text.len()).map(|end| unit(&text[..end])).collect()
}

#[test]
fn a_token_has_a_vector_of_its_own_in_every_encoding() {
    let server = server(mock::embeds(SIZE));
    let post = |more: Value| {
        let mut body = json!({"input": ["abc", "d"], "task": "token_embed"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.client().post("/pooling", &body)
    };
    let plain = post(json!({})).ok();
    for (entry, text) in plain["data"].as_array().unwrap().iter().zip(["abc", "d"]) {
        let rows: Vec<Vec<f32>> = entry["data"].as_array().unwrap().iter().map(floats).collect();
        assert_eq!(rows, each(text));
    }
    let encoded = post(json!({"encoding_format": "base64"})).ok();
    assert_eq!(singles(&from_base64(&encoded["data"][0]["data"])), each("abc").concat());
    let bytes = post(json!({"encoding_format": "bytes"}));
    let metadata: Value = serde_json::from_str(bytes.header("metadata").unwrap()).unwrap();
    assert_eq!(metadata["data"][0]["shape"], json!([3, SIZE]));
    assert_eq!(metadata["data"][1]["shape"], json!([1, SIZE]));
    assert_eq!(singles(&bytes.body), [each("abc"), each("d")].concat().concat());
    server.quiesce();
}

#[test]
fn a_model_of_tokens_compares_texts_by_their_tokens() {
    let info = PoolingInfo { per_token: true, ..mock::embeds(SIZE) };
    let server = server(info);
    let body = json!({"queries": "ab", "documents": ["abc", "x"]});
    let scores = server.client().post("/score", &body).ok();
    let wanted = |text: &str| late_interaction(&each("ab").concat(), &each(text).concat(), SIZE as usize);
    for (entry, text) in scores["data"].as_array().unwrap().iter().zip(["abc", "x"]) {
        assert!((entry["score"].as_f64().unwrap() as f32 - wanted(text)).abs() < 1e-6);
    }
    assert!((scores["data"][0]["score"].as_f64().unwrap() - 2.0).abs() < 1e-5, "every token finds itself");
    let embedded = server.client().post("/v1/embeddings", &json!({"input": "ab"})).ok();
    assert_eq!(embedded["data"][0]["embedding"].as_array().unwrap().len(), 2);
    let refused = server.client().post("/pooling", &json!({"input": "ab", "task": "embed"}));
    assert_eq!(refused.error().2.as_deref(), Some("task"));
    assert!(refused.text().contains("token_embed"), "{}", refused.text());
}

#[test]
fn a_conversation_is_rendered_and_embedded_without_an_opened_answer() {
    for (server, path, key) in [
        (server(mock::embeds(SIZE)), "/v1/embeddings", "embedding"),
        (server(mock::embeds(SIZE)), "/pooling", "data"),
        (server(mock::classifies(SIZE)), "/classify", "probs"),
    ] {
        let conversation = json!({"messages": [{"role": "user", "content": "ab"}]});
        let answer = server.client().post(path, &conversation).ok();
        let ids =
            [&[mock::START], &"user\nab".bytes().map(u32::from).collect::<Vec<_>>()[..], &[mock::END, 10]];
        let same = server.client().post(path, &json!({"input": ids.concat()})).ok();
        assert_eq!(answer["data"][0][key], same["data"][0][key], "{path}");
        let mut opened = conversation.clone();
        opened["add_generation_prompt"] = json!(true);
        let opened = server.client().post(path, &opened).ok();
        assert!(opened["usage"]["prompt_tokens"].as_u64() > answer["usage"]["prompt_tokens"].as_u64());
    }
}

#[test]
fn coheres_embeddings_come_in_every_type_that_was_asked_for() {
    let server = server(mock::embeds(SIZE));
    let body = json!({"model": "mock", "texts": ["a", "bc"], "input_type": "search_query",
        "embedding_types": ["float", "base64", "int8", "uint8", "binary", "ubinary"]});
    let answer = server.client().post("/v2/embed", &body).ok();
    assert_eq!(
        (&answer["response_type"], &answer["texts"]),
        (&json!("embeddings_by_type"), &json!(["a", "bc"]))
    );
    assert_eq!(answer["meta"]["billed_units"]["input_tokens"], 3);
    for (index, text) in ["a", "bc"].into_iter().enumerate() {
        let embeddings = &answer["embeddings"];
        assert_eq!(floats(&embeddings["float"][index]), unit(text));
        assert_eq!(singles(&from_base64(&embeddings["base64"][index])), unit(text));
        let bits =
            unit(text).iter().enumerate().fold(0, |byte, (at, x)| byte | u8::from(*x > 0.0) << (7 - at));
        assert_eq!(embeddings["ubinary"][index], json!([bits]));
        let steps: Vec<i16> = unit(text).iter().map(|x| (x * 127.0).round() as i16).collect();
        assert_eq!(embeddings["int8"][index], json!(steps));
        assert_eq!(embeddings["uint8"][index], steps.iter().map(|step| step + 128).collect::<Value>());
        assert_eq!(embeddings["binary"][index], json!([i16::from(bits) - 128]));
    }
    let parts =
        json!({"inputs": [{"content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]});
    let joined = server.client().post("/v2/embed", &parts).ok();
    assert_eq!(joined["embeddings"]["float"][0], answer["embeddings"]["float"][1]);
    let long = "x".repeat(5000);
    let cut = server.client().post("/v2/embed", &json!({"texts": [long]})).ok();
    assert_eq!(
        cut["meta"]["billed_units"]["input_tokens"], 4096,
        "the end is cut unless the request says otherwise"
    );
    for (fields, status, param) in [
        (json!({"texts": [long], "truncate": "NONE"}), 400, "texts"),
        (json!({"texts": ["a"], "truncate": "MIDDLE"}), 400, "truncate"),
        (json!({"texts": ["a"], "embedding_types": ["hex"]}), 400, "embedding_types"),
        (json!({"texts": ["a"], "images": ["data:"]}), 501, "images"),
        (json!({"texts": ["a"], "output_dimension": 2}), 400, "output_dimension"),
        (json!({"texts": []}), 400, "texts"),
        (json!({}), 400, "texts"),
        (json!({"inputs": [{"content": [{"type": "image_url"}]}]}), 501, "inputs"),
    ] {
        let answer = server.client().post("/v2/embed", &fields);
        let (got, _, found) = answer.error();
        assert_eq!((got, found.as_deref()), (status, Some(param)), "{}", answer.text());
    }
}

#[test]
fn classes_have_probabilities_and_the_likeliest_a_name() {
    let server = server(mock::classifies(SIZE));
    let answer = server.client().post("/classify", &json!({"input": ["ab", "c"]})).ok();
    assert!(answer["id"].as_str().unwrap().starts_with("classify-"));
    for (entry, text) in answer["data"].as_array().unwrap().iter().zip(["ab", "c"]) {
        let probabilities = mock::classifies(SIZE).probabilities(raw(text), None);
        assert_eq!(floats(&entry["probs"]), probabilities);
        let most = probabilities.iter().copied().fold(0.0, f32::max);
        let best = probabilities.iter().position(|p| *p == most).unwrap();
        assert_eq!((&entry["label"], &entry["num_classes"]), (&json!(format!("LABEL_{best}")), &json!(SIZE)));
    }
    let body = json!({"input": "ab", "use_activation": false});
    assert_eq!(floats(&server.client().post("/classify", &body).ok()["data"][0]["probs"]), raw("ab"));
}

#[test]
fn embeddings_are_compared_by_their_angle_one_to_each_or_pair_by_pair() {
    let server = server(mock::embeds(SIZE));
    for (queries, documents, pairs) in [
        (json!("a"), json!("b"), &[("a", "b")][..]),
        (json!("a"), json!(["b", "c"]), &[("a", "b"), ("a", "c")]),
        (json!(["a", "d"]), json!(["b", "c"]), &[("a", "b"), ("d", "c")]),
    ] {
        for (path, first, second) in [
            ("/score", "queries", "documents"),
            ("/v1/score", "text_1", "text_2"),
            ("/score", "data_1", "data_2"),
        ] {
            let answer = server.client().post(path, &json!({ first: queries, second: documents })).ok();
            let scores: Vec<f32> = answer["data"]
                .as_array()
                .unwrap()
                .iter()
                .map(|e| e["score"].as_f64().unwrap() as f32)
                .collect();
            let wanted: Vec<f32> = pairs.iter().map(|(a, b)| cosine(&raw(a), &raw(b))).collect();
            assert_eq!(scores, wanted);
            assert_eq!(answer["data"][0]["object"], "score");
        }
    }
    let refused = server.client().post("/score", &json!({"queries": ["a", "b"], "documents": ["c"]}));
    assert_eq!(refused.error().2.as_deref(), Some("documents"));
}

#[test]
fn a_cross_encoder_reads_each_pair_as_one_prompt() {
    let server = server(mock::classifies(1));
    let answer = server.client().post("/score", &json!({"queries": "ab", "documents": ["c", "de"]})).ok();
    let judge = |text: &str| {
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        mock::classifies(1).probabilities(ChainModel::vector(&tokens, 1), None)[0]
    };
    for (entry, text) in answer["data"].as_array().unwrap().iter().zip(["abc", "abde"]) {
        assert_eq!(entry["score"].as_f64().unwrap() as f32, judge(text));
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 7);
}

#[test]
fn a_ranking_is_sorted_names_the_original_places_and_is_cut_by_top_n() {
    for server in [server(mock::embeds(SIZE)), server(mock::classifies(1))] {
        let documents = json!(["one", {"text": "two"}, "three", "two"]);
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            let rank = |more: Value| {
                let mut body = json!({"model": "mock", "query": "q", "documents": documents});
                body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                server.client().post(path, &body).ok()
            };
            let answer = rank(json!({}));
            let results = answer["results"].as_array().unwrap();
            let scores: Vec<f64> = results.iter().map(|e| e["relevance_score"].as_f64().unwrap()).collect();
            assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
            let places: Vec<u64> = results.iter().map(|e| e["index"].as_u64().unwrap()).collect();
            let place = |index: u64| places.iter().position(|other| *other == index);
            assert!(place(1) < place(3), "equal documents keep their order");
            for entry in results {
                let text = ["one", "two", "three", "two"][entry["index"].as_u64().unwrap() as usize];
                assert_eq!(entry["document"], json!({ "text": text }));
            }
            assert_eq!(rank(json!({"top_n": 2}))["results"], json!(results[..2]));
            assert_eq!(rank(json!({"top_n": 0}))["results"], answer["results"]);
            assert!(rank(json!({"return_documents": false}))["results"][0].get("document").is_none());
        }
        let body = json!({"query": "q", "documents": ["abcdef"], "max_tokens_per_doc": 2});
        let cut = server.client().post("/rerank", &body).ok();
        assert_eq!(cut["usage"]["prompt_tokens"], 3, "the query is whole");
    }
}

#[test]
fn a_model_says_which_task_it_has_when_asked_for_another() {
    let bodies = [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/pooling", json!({"input": "a"})),
        ("/classify", json!({"input": "a"})),
        ("/score", json!({"queries": "a", "documents": "b"})),
        ("/rerank", json!({"query": "a", "documents": ["b"]})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
    ];
    let embeds = server(mock::embeds(SIZE));
    let classifies = server(mock::classifies(SIZE));
    let generates = common::letters();
    let generates = Server::start(generates);
    let generation = ["/v1/completions", "/v1/chat/completions"];
    for (server, serves, says) in [
        (&embeds, &["/v1/embeddings", "/pooling", "/score", "/rerank"][..], "task embed"),
        (&classifies, &["/pooling", "/classify"], "task classify"),
        (&generates, &generation, "generates text"),
    ] {
        for (path, body) in &bodies {
            let answer = server.client().post(path, body);
            if serves.contains(path) {
                answer.ok();
            } else {
                let says = if generation.contains(path) { "generates no text" } else { says };
                assert!(answer.text().contains(says), "{path}: {}", answer.text());
                let (status, _, param) = answer.error();
                assert_eq!((status, param.as_deref()), (400, Some("model")));
            }
        }
    }
}

#[test]
fn a_text_that_fails_fails_its_request_and_no_other() {
    let worker = MockWorker::new(WorkerInfo { pooling: Some(mock::embeds(SIZE)), ..mock::info() });
    let server = Server::start(worker.failing(Fault::BadRow(1)));
    let failed = server.client().post("/v1/embeddings", &json!({"input": ["a", "b"]}));
    assert_eq!(failed.status, 500);
    assert!(failed.text().contains("not finite"));
    server.client().post("/v1/embeddings", &json!({"input": ["a", "b"]})).ok();
    server.quiesce();
}
