use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: ServerConfig,
}

fn parse(flags: &[&str]) -> ServerConfig {
    Cli::try_parse_from(std::iter::once(&"serve").chain(flags))
        .unwrap_or_else(|error| panic!("{error}"))
        .config
}

#[test]
fn sizes_take_suffixes() {
    assert_eq!(parse_size("4G"), Ok(4 << 30));
    assert_eq!(parse_size("512M"), Ok(512 << 20));
    assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
    assert_eq!(parse_size("1000"), Ok(1000));
    for bad in ["", "G", "4X", "-1M", "1e400", "nan", "0.3", "12é"] {
        assert!(parse_size(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_empty_key_and_a_step_of_no_time_are_refused() {
    for flags in [["m", "--api-key", ""], ["m", "--step-timeout", "0"]] {
        let refused = Cli::try_parse_from(std::iter::once("serve").chain(flags)).map(|_| ());
        assert!(refused.is_err_and(|error| error.to_string().contains(flags[1])), "{flags:?}");
    }
}

#[test]
fn only_what_was_given_reaches_the_worker() {
    let json = parse(&["smollm2-135m"]).engine_json(None);
    let fields: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        fields,
        serde_json::json!({"model": "smollm2-135m", "served_model_name": "smollm2-135m",
            "enable_prefix_caching": true})
    );
}

#[test]
fn flags_are_the_workers_fields() {
    let json = parse(&[
        "--model",
        "dir",
        "--served-model-name",
        "a",
        "b",
        "--max-model-len",
        "8k",
        "--kv-cache-memory-bytes",
        "1G",
        "--kv-cache-dtype",
        "fp8_e4m3",
        "--no-enable-prefix-caching",
        "--overlap",
        "--enforce-eager",
        "--strict",
    ])
    .engine_json(None);
    let fields: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        fields,
        serde_json::json!({"model": "dir", "served_model_name": "a", "max_model_len": 8000,
            "kv_cache_memory": 1 << 30, "kv_cache_dtype": "fp8_e4m3", "enforce_eager": true, "strict": true,
            "enable_prefix_caching": false, "overlap": true})
    );
}

#[test]
fn parsers_have_the_peers_spelling_and_a_wrong_name_lists_the_right_ones() {
    use crate::parsing::Wanted;

    let parsing = parse(&["m", "--reasoning-parser", "deepseek_r1", "--tool-call-parser", "qwen3_xml"]);
    let parsing = parsing.http.parsing;
    assert!(matches!(parsing.reasoning_parser, Some(Wanted::Named(format)) if format.name == "deepseek_r1"));
    assert!(matches!(parsing.tool_call_parser, Some(Wanted::Named(format)) if format.name == "qwen3_coder"));
    let parsing = parse(&["m", "--enable-auto-tool-choice", "--tool-call-parser", "auto"]).http.parsing;
    assert!(matches!(parsing.tool_call_parser, Some(Wanted::Auto)));
    let error = Cli::try_parse_from(["serve", "m", "--tool-call-parser", "nobody"]).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("hermes"), "{error}");
}

#[test]
fn speculation_flags_reach_the_loop_and_the_worker() {
    let config =
        parse(&["m", "--drafter", "suffix", "--speculation", "auto", "--spec-synthetic-acceptance", "2.5"]);
    let resolved = config.speculation.resolve().unwrap();
    let resolved = resolved.as_ref();
    assert_eq!(config.engine_options(resolved).speculation, resolved.map(|resolved| resolved.config));
    let fields: serde_json::Value = serde_json::from_str(&config.engine_json(resolved)).unwrap();
    assert_eq!((&fields["max_drafts"], &fields["spec_synthetic_acceptance"]), (&16.into(), &2.5.into()));
    let vllm = r#"{"method": "ngram", "num_speculative_tokens": 3}"#;
    let resolved = parse(&["m", "--speculative-config", vllm]).speculation.resolve().unwrap();
    assert_eq!(resolved.map(|resolved| resolved.worker.max_drafts), Some(3));
    assert!(parse(&["m", "--speculation", "auto"]).speculation.resolve().is_err());
    for bad in [["m", "--spec-synthetic-acceptance", "0.5"], ["m", "--spec-synthetic-acceptance", "nan"]] {
        assert!(Cli::try_parse_from(std::iter::once(&"serve").chain(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn the_later_of_two_opposite_flags_wins() {
    assert!(
        parse(&["m", "--no-enable-prefix-caching", "--enable-prefix-caching"]).scheduling.prefix_caching()
    );
    assert_eq!(parse(&["m", "--overlap", "--no-overlap"]).scheduling.overlap(), Some(false));
    assert_eq!(parse(&["m", "--no-overlap", "--overlap"]).scheduling.overlap(), Some(true));
    assert_eq!(parse(&["m"]).scheduling.overlap(), None);
}

#[test]
fn flags_with_which_nothing_can_work_are_refused_llama_cpp_23453() {
    for bad in [
        ["--max-model-len", "0"],
        ["--max-model-len", "-1"],
        ["--max-num-seqs", "-1"],
        ["--max-num-batched-tokens", "0"],
        ["--block-size", "-3"],
        ["--kv-cache-memory", "1.5x"],
        ["--port", "70000"],
        ["--max-queue", "-1"],
        ["--header-timeout", "inf"],
    ] {
        assert!(Cli::try_parse_from(["serve", "m"].iter().chain(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_flag_of_nothing_is_refused() {
    for bad in [
        ["m", "--max-num-seqs", "0"],
        ["m", "--drain-timeout", "-1"],
        ["m", "--step-timeout", "nan"],
        ["m", "--allowed-origins", "app"],
    ] {
        assert!(Cli::try_parse_from(std::iter::once(&"serve").chain(&bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_root_path_is_a_path_and_template_variables_are_an_object() {
    let flags =
        |flags: &[&str]| Cli::try_parse_from(["serve", "m"].iter().chain(flags)).map(|cli| cli.config.http);
    assert_eq!(flags(&["--root-path", "/a/b/"]).unwrap().root_path, "/a/b");
    assert_eq!(flags(&["--root-path", "/"]).unwrap().root_path, "");
    for bad in ["a", "/a b", "/a?b", "http://x/a"] {
        assert!(flags(&["--root-path", bad]).is_err(), "{bad}");
    }
    for bad in ["[]", "x", ""] {
        assert!(flags(&["--default-chat-template-kwargs", bad]).is_err(), "{bad}");
    }
}
