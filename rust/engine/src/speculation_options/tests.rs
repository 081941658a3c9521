use serde_json::json;

use super::*;

fn resolve(options: Value) -> Result<Option<ResolvedSpeculation>, String> {
    serde_json::from_value::<SpeculationOptions>(options).expect("the test's options").resolve()
}

fn vllm(config: &Value) -> Result<Option<ResolvedSpeculation>, String> {
    resolve(json!({"speculative_config": config.to_string()}))
}

#[test]
fn flags_say_who_drafts_and_for_whom() {
    assert_eq!(resolve(json!({})), Ok(None));
    assert_eq!(resolve(json!({"speculation": "off"})), Ok(None));
    for (speculation, default, max_drafts) in [
        (json!(null), Speculation::Off, 16),
        (json!("auto"), Speculation::Auto, 16),
        (json!(4), Speculation::MaxTokens(4), 16),
        (json!("20"), Speculation::MaxTokens(20), 20),
    ] {
        let resolved = resolve(json!({"drafter": "ngram", "speculation": speculation}));
        let resolved = resolved.expect("valid").expect("there is a drafter");
        assert_eq!((resolved.config.default, resolved.worker.max_drafts), (default, max_drafts));
        assert_eq!(resolved.config.drafter, DrafterConfig::Ngram(NgramConfig::default()));
    }
}

#[test]
fn vllm_json_is_understood_for_ngram_and_suffix() {
    let ngram = json!({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2});
    let resolved = vllm(&ngram).expect("valid").expect("there is a drafter");
    assert_eq!((resolved.config.default, resolved.worker.max_drafts), (Speculation::MaxTokens(5), 5));
    assert_eq!(resolved.config.drafter, DrafterConfig::Ngram(NgramConfig { min: 2, max: 4 }));
    let suffix = json!({"method": "suffix", "num_speculative_tokens": 32, "suffix_decoding_max_tree_depth": 16,
        "suffix_decoding_max_cached_requests": 1000, "suffix_decoding_max_spec_factor": 2.0,
        "suffix_decoding_min_token_prob": 0.2});
    let resolved = vllm(&suffix).expect("valid").expect("there is a drafter");
    let expected = SuffixConfig { depth: 16, factor: 2.0, min_probability: 0.2, shared_tokens: 1 << 19 };
    assert_eq!(resolved.config.drafter, DrafterConfig::Suffix(expected));
}

#[test]
fn what_is_not_supported_or_contradicts_itself_is_refused_by_name_vllm_50708() {
    let base = json!({"method": "ngram", "num_speculative_tokens": 3});
    let with = |name: &str, value: Value| {
        let mut config = base.clone();
        config[name] = value;
        config
    };
    for (config, part) in [
        (json!({"method": "medusa", "num_speculative_tokens": 3}), "\"medusa\" is not supported"),
        (json!({"method": "eagle3", "num_speculative_tokens": 3}), "eagle3=PATH, or drafter suffix"),
        (with("model", json!("m")), "drafter ngram with weights given: it has no weights"),
        (with("draft_sample_method", json!("probabilistic")), "possible is draft_sample_method greedy"),
        (with("rejection_sample_method", json!("typical")), "must be standard or block, got \"typical\""),
        (
            json!({"method": "mtp", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}),
            "possible is draft_tensor_parallel_size 1",
        ),
        (json!({"model": "m", "num_speculative_tokens": 3}), "method must be given"),
        (json!({"method": "ngram"}), "num_speculative_tokens must be given"),
        (with("num_speculative_tokens", json!(0)), "from 1 to 64 drafts, got 0"),
        (with("num_speculative_tokens", json!(10_000)), "got 10000"),
        (with("num_speculative_tokens", json!(-1)), "got -1"),
        (with("num_speculative_tokens", json!("3")), "got \"3\""),
        (with("num_speculative_tokens", json!(2.5)), "got 2.5"),
        (with("prompt_lookup_max", json!(40)), "max 40"),
        (
            with("draft_tensor_parallel_size", json!(2)),
            "draft_tensor_parallel_size above 1: it computes nothing",
        ),
        (json!([1]), "invalid type"),
    ] {
        let refusal = vllm(&config).expect_err("refused");
        assert!(refusal.starts_with("speculative_config: ") && refusal.contains(part), "{refusal}");
    }
    for (options, part) in [
        (json!({"speculation": "auto"}), "needs a drafter"),
        (json!({"spec_synthetic_acceptance": 2.0}), "needs a drafter"),
        (json!({"drafter": "medusa"}), "\"medusa\" is not supported; there are ngram, suffix, draft_model"),
        (json!({"drafter": "ngram", "speculation": "on"}), "got \"on\""),
        (json!({"drafter": "ngram", "speculation": 65}), "got 65"),
        (json!({"drafter": "ngram", "speculative_config": "{}"}), "give one of them"),
    ] {
        let refusal = resolve(options).expect_err("refused");
        assert!(refusal.contains(part), "{refusal}");
    }
}

#[test]
fn models_draft_with_the_weights_and_methods_that_were_given() {
    let models = ModelDrafter::ALL.map(DrafterConfig::Worker);
    for (options, drafter, model, length) in [
        (json!({"drafter": "draft_model=/w"}), models[0], Some("/w"), None),
        (json!({"drafter": "mtp"}), models[1], None, None),
        (
            json!({"drafter": "eagle3", "drafter_model": "/e", "num_speculative_tokens": 3}),
            models[2],
            Some("/e"),
            Some(3),
        ),
        (
            json!({"speculative_config": json!({"method": "dspark", "model": "/e", "num_speculative_tokens": 7,
                "draft_sample_method": "probabilistic", "rejection_sample_method": "block"}).to_string()}),
            models[3],
            Some("/e"),
            Some(7),
        ),
        (
            json!({"speculative_config": json!({"method": "deepseek_mtp", "num_speculative_tokens": 1}).to_string()}),
            models[1],
            None,
            Some(1),
        ),
    ] {
        let ResolvedSpeculation { config, worker, .. } = resolve(options).expect("valid").expect("a drafter");
        assert_eq!((config.drafter, worker.drafter_model.as_deref()), (drafter, model));
        assert_eq!(worker.num_speculative_tokens, length);
        let is_random = worker.draft_sample_method == DraftSampling::Probabilistic;
        assert_eq!(config.sampled_drafts, is_random);
        assert_eq!(is_random, worker.rejection_sample_method == RejectionSampling::Block);
    }
    let refusal = resolve(json!({"drafter": "mtp", "num_speculative_tokens": 2, "speculation": 3}));
    assert!(refusal.expect_err("refused").contains("at most num_speculative_tokens, 2, got 3"));
}
