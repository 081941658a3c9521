//! Values of fields: what each takes, and what it does not.

use frizzen_core::SamplingParams;
use serde_json::{Value, json};

use super::{BOTH, LIMITS, body, chat_bytes, completion_bytes, read};
use crate::defaults::SamplingDefaults;
use crate::request::chat::ChatRequest;
use crate::request::common::{Limits, MAX_N, MAX_STOP};
use crate::request::completion::CompletionRequest;
use crate::request::fields::Fields;
use crate::request::parity::Dialect;

#[test]
fn bounds_of_every_sampling_field_vllm_47494() {
    let table: &[(&str, &[Value], &[Value])] = &[
        (
            "temperature",
            &[json!(0), json!(-0.0), json!(2), json!(5), json!(1e-320)],
            &[json!(-0.1), json!(1e39)],
        ),
        ("top_p", &[json!(1), json!(0.01)], &[json!(0), json!(1.01), json!(-1)]),
        ("min_p", &[json!(0), json!(1)], &[json!(-0.01), json!(1.01), json!(2)]),
        ("top_k", &[json!(-1), json!(0), json!(1), json!(2_147_483_647_i64)], &[json!(-2), json!(1.5)]),
        ("frequency_penalty", &[json!(-2), json!(2)], &[json!(-2.01), json!(2.01), json!(100)]),
        ("presence_penalty", &[json!(-2), json!(2)], &[json!(-2.01), json!(2.01)]),
        ("repetition_penalty", &[json!(0.01), json!(1), json!(1e9)], &[json!(0), json!(-1)]),
        ("min_tokens", &[json!(0), json!(1)], &[json!(-1), json!(0.5)]),
        ("prompt_logprobs", &[json!(0), json!(20)], &[json!(-1), json!(21)]),
        ("cache_salt", &[json!("s"), json!("é".repeat(128))], &[json!(""), json!("é".repeat(129))]),
        ("stream_options", &[], &[json!({}), json!({"include_usage": true})]),
        (
            "speculation",
            &[json!("off"), json!("auto"), json!({"max_tokens": 3})],
            &[
                json!("on"),
                json!(3),
                json!({}),
                json!({"max_tokens": -1}),
                json!({"max_tokens": "3"}),
                json!({"min": 1}),
            ],
        ),
        ("priority", &[json!(0)], &[json!(1), json!(2_147_483_648_i64)]),
    ];
    for dialect in BOTH {
        for (name, good, bad) in table {
            for value in *good {
                read(dialect, name, value.clone())
                    .unwrap_or_else(|error| panic!("{name} {value}: {error:?}"));
            }
            for value in bad.iter().chain(&[json!("0.5"), json!(true), json!([])]) {
                if *name == "cache_salt" && value == "0.5" {
                    continue;
                }
                let error = read(dialect, name, value.clone()).expect_err(&format!("{name} {value}"));
                assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(*name)), "{value}");
            }
            assert!(read(dialect, name, Value::Null).is_ok(), "{name}");
        }
    }
}

#[test]
fn numbers_that_are_not_json_are_refused_sglang_28153() {
    for value in ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5"] {
        let body = format!("{{\"prompt\":\"q\",\"temperature\":{value}}}");
        assert_eq!(completion_bytes(body.as_bytes()).unwrap_err().status, 400, "{value}");
    }
}

#[test]
fn huge_integers_are_refused_and_size_nothing_vllm_51137() {
    let huge =
        [json!(-1), json!(2_147_483_648_i64), json!(9_223_372_036_854_775_807_u64), json!(1e30), json!(1e3)];
    for name in ["n", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"] {
        for value in &huge[1..] {
            let error =
                read(Dialect::Completions, name, value.clone()).expect_err(&format!("{name} {value}"));
            assert_eq!(error.param.as_deref(), Some(name));
        }
    }
    for name in ["max_tokens", "min_tokens"] {
        for value in [&huge[0], &huge[2], &huge[3]] {
            assert!(read(Dialect::Completions, name, value.clone()).is_err(), "{name} {value}");
        }
    }
}

#[test]
fn max_tokens_must_be_an_integer_vllm_39556() {
    for value in [json!(-1), json!(1.5), json!("8"), json!(true)] {
        for (dialect, name) in [
            (Dialect::Completions, "max_tokens"),
            (Dialect::Chat, "max_tokens"),
            (Dialect::Chat, "max_completion_tokens"),
        ] {
            assert_eq!(read(dialect, name, value.clone()).unwrap_err().param.as_deref(), Some(name));
        }
    }
    let max = |dialect, value| read(dialect, "max_tokens", value).unwrap().params.max_tokens;
    assert_eq!(max(Dialect::Completions, json!(8.0)), Some(8));
    assert_eq!(max(Dialect::Completions, Value::Null), Some(16));
    assert_eq!(max(Dialect::Chat, Value::Null), None);
    let both =
        json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 5, "max_completion_tokens": 7});
    let both = chat_bytes(both.to_string().as_bytes()).unwrap();
    assert_eq!(both.common.params.max_tokens, Some(7));
}

#[test]
fn logprobs_and_top_logprobs_go_together_lmdeploy_4121() {
    let chat = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "q"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        chat_bytes(body.to_string().as_bytes()).map(|request| request.common.params.logprobs)
    };
    assert_eq!(chat(json!({"logprobs": true})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 0})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": null})).unwrap(), Some(0));
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 5})).unwrap(), Some(5));
    assert_eq!(chat(json!({"logprobs": false, "top_logprobs": 0})).unwrap(), None);
    for bad in [
        json!({"logprobs": false, "top_logprobs": 5}),
        json!({"top_logprobs": 5}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"logprobs": true, "top_logprobs": -1}),
        json!({"logprobs": 5}),
    ] {
        assert_eq!(chat(bad.clone()).unwrap_err().status, 400, "{bad}");
    }
    for (value, wanted) in
        [(json!(0), Some(0)), (json!(1), Some(1)), (json!(5), Some(5)), (Value::Null, None)]
    {
        assert_eq!(read(Dialect::Completions, "logprobs", value).unwrap().params.logprobs, wanted);
    }
    assert!(read(Dialect::Completions, "logprobs", json!(-1)).is_err());
}

#[test]
fn an_empty_stop_string_is_refused_sglang_38712() {
    for dialect in BOTH {
        for bad in
            [json!(""), json!([""]), json!(["ok", ""]), json!([1]), json!({}), json!(vec!["x"; MAX_STOP + 1])]
        {
            assert_eq!(read(dialect, "stop", bad).unwrap_err().param.as_deref(), Some("stop"));
        }
        for none in [Value::Null, json!([])] {
            assert!(read(dialect, "stop", none).unwrap().stop.is_empty());
        }
        assert_eq!(read(dialect, "stop", json!("a")).unwrap().stop, ["a"]);
        assert_eq!(read(dialect, "stop", json!(["a", "b"])).unwrap().stop, ["a", "b"]);
    }
}

#[test]
fn token_ids_in_every_field_are_of_the_vocabulary_vllm_16529() {
    for dialect in BOTH {
        for bias in [
            json!({"1000": 5}),
            json!({"-1": 5}),
            json!({"abc": 1}),
            json!({"5": 1000}),
            json!({"5": "1"}),
            json!({"99999999999999999999": 1}),
        ] {
            assert_eq!(read(dialect, "logit_bias", bias).unwrap_err().param.as_deref(), Some("logit_bias"));
        }
        let many: Value =
            (0..100_000).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>().into();
        assert!(read(dialect, "logit_bias", many).is_err());
        for name in ["stop_token_ids", "allowed_token_ids"] {
            for bad in [json!([1000]), json!([-1]), json!([1.5]), json!([true]), json!(["7"]), json!(7)] {
                assert_eq!(read(dialect, name, bad).unwrap_err().param.as_deref(), Some(name));
            }
        }
        assert!(read(dialect, "allowed_token_ids", json!([])).is_err());
        let bias = read(dialect, "logit_bias", json!({"5": -100, "999": 0.5})).unwrap().params.logit_bias;
        assert_eq!(bias, [(5, -100.0), (999, 0.5)]);
    }
}

#[test]
fn seeds_of_any_sign_are_seeds_tt_metal_53802() {
    for dialect in BOTH {
        let seed = |value| read(dialect, "seed", value).map(|common| common.params.seed);
        assert_eq!(seed(json!(0)).unwrap(), Some(0));
        assert_eq!(seed(json!(-1)).unwrap(), Some(u64::MAX));
        assert_eq!(seed(json!(u64::MAX)).unwrap(), Some(u64::MAX));
        assert_eq!(seed(Value::Null).unwrap(), None);
        assert!(seed(json!(1e30)).is_err());
    }
}

#[test]
fn n_is_bounded_and_never_dropped_vllm_52843() {
    for dialect in BOTH {
        assert_eq!(read(dialect, "n", json!(4)).unwrap().n, 4);
        assert_eq!(read(dialect, "n", Value::Null).unwrap().n, 1);
        for bad in [json!(0), json!(-1), json!(MAX_N + 1), json!(2.5)] {
            assert_eq!(read(dialect, "n", bad).unwrap_err().param.as_deref(), Some("n"));
        }
    }
}

#[test]
fn truncation_takes_minus_one_and_the_context_vllm_22635() {
    for dialect in BOTH {
        let cut = |value| read(dialect, "truncate_prompt_tokens", value).map(|common| common.truncate);
        for (value, wanted) in
            [(json!(-1), Some(63)), (json!(1), Some(1)), (json!(2), Some(2)), (json!(64), Some(64))]
        {
            assert_eq!(cut(value).unwrap(), wanted);
        }
        for bad in [json!(-2), json!(0), json!(65)] {
            assert!(cut(bad.clone()).is_err(), "{bad}");
        }
        assert!(read(dialect, "truncation_side", json!("middle")).is_err());
    }
}

#[test]
fn stream_options_need_a_stream_kthena_202() {
    for dialect in BOTH {
        let mut body: Value = serde_json::from_slice(&body(dialect, "stream", json!(true))).unwrap();
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": null});
        let (fields, _) = Fields::parse(body.to_string().as_bytes(), dialect).unwrap();
        let shown = match dialect {
            Dialect::Chat => ChatRequest::read(fields, &LIMITS).unwrap().common.shown,
            _ => CompletionRequest::read(fields, &LIMITS).unwrap().common.shown,
        };
        assert!(shown.stream && shown.include_usage && !shown.continuous_usage);
        assert!(read(dialect, "stream_options", json!({"include_usage": false})).is_err());
    }
}

#[test]
fn the_models_recommendations_stand_in_for_what_is_not_said() {
    let defaults =
        SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::default() };
    let limits = Limits { defaults, ..LIMITS };
    let read = |fields: Value| {
        let mut body = json!({"prompt": "q"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (fields, _) = Fields::parse(body.to_string().as_bytes(), Dialect::Completions).unwrap();
        let params = CompletionRequest::read(fields, &limits).unwrap().common.params;
        (params.temperature, params.top_k)
    };
    assert_eq!(read(json!({})), (0.6, 20));
    assert_eq!(read(json!({"temperature": null, "top_k": null})), (0.6, 20));
    assert_eq!(read(json!({"temperature": 0, "top_k": -1})), (0.0, 0));
}

#[test]
fn nothing_given_is_the_default() {
    let request = completion_bytes(b"{\"prompt\":\"q\"}").unwrap();
    let defaults = SamplingParams { max_tokens: Some(16), ..SamplingParams::default() };
    assert_eq!(request.common.params, defaults);
    assert!(request.common.skip_special && !request.common.include_stop && !request.echo);
}

#[test]
fn an_error_quotes_little_of_what_was_sent() {
    let error = read(Dialect::Chat, "temperature", json!("x".repeat(100_000))).unwrap_err();
    assert!(error.message.len() < 200, "{}", error.message.len());
}

#[test]
fn bad_words_are_bounded_and_none_is_empty() {
    for dialect in BOTH {
        let many = vec!["x"; 513];
        for bad in [json!([""]), json!(["a", ""]), json!(many), json!("x".repeat(8193)), json!([5])] {
            let error = read(dialect, "bad_words", bad).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("bad_words")));
        }
        assert_eq!(read(dialect, "bad_words", json!(["a", " b"])).unwrap().bad_words, ["a", " b"]);
        assert!(read(dialect, "bad_words", json!([])).unwrap().bad_words.is_empty());
    }
}

#[test]
fn names_of_another_peer_mean_the_same() {
    for dialect in BOTH {
        let named = read(dialect, "rid", json!("a")).unwrap();
        assert_eq!(named.request_id.as_deref(), Some("a"));
        assert!(read(dialect, "no_stop_trim", json!(true)).unwrap().include_stop);
        // What would bind the output is never passed over.
        for field in ["regex", "ebnf", "json_schema"] {
            let error = read(dialect, field, json!("x")).unwrap_err();
            assert!(error.message.contains("structured_outputs"), "{error:?}");
        }
    }
}
