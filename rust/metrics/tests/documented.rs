//! The list of families is a document, and every family of the peers is in it or has a reason.

#![expect(clippy::unwrap_used, reason = "a test: a failed unwrap is its failure")]

use std::fmt::Write;

use frizzen_metrics::{ABSENT, FAMILIES};

/// The families of vLLM's two front ends, without prefix and `_total`.
const PEERS: &[&str] = &[
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "lora_requests_info",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_by_source",
    "prompt_tokens_cached",
    "prompt_tokens_cached_by_source",
    "generation_tokens",
    "request_success",
    "corrupted_requests",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "estimated_flops_per_gpu",
    "estimated_read_bytes_per_gpu",
    "estimated_write_bytes_per_gpu",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
    "request_params_n",
    "request_num_preemptions",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
    "sleep_mode_operation_duration_seconds",
    "sleep_mode_operations_in_flight",
    "rl_weight_update_operation_duration_seconds",
    "rl_weight_update_operations_in_flight",
    "nixl_xfer_time_seconds",
    "nixl_post_time_seconds",
    "nixl_bytes_transferred",
    "nixl_num_descriptors",
    "nixl_num_failed_transfers",
    "nixl_num_failed_notifications",
    "nixl_num_kv_expired_reqs",
    "mooncake_store_operation",
    "http_requests",
    "http_request_duration_seconds",
    "http_request_duration_highr_seconds",
    "num_requests_kv_fetch_by_stage",
    "engine_sleep_state",
    "mm_cache_queries",
    "mm_cache_hits",
    "cache_config_info",
    "admission_rejections",
    "watermark_requests",
    "websocket_connections_active",
    "websocket_connections_total",
    "websocket_duration_seconds",
];

#[test]
fn every_family_of_the_peers_is_here_or_has_a_reason() {
    for name in PEERS {
        let here = FAMILIES.iter().filter(|(family, _)| family == name).count();
        let absent = ABSENT.iter().filter(|(family, _)| family == name).count();
        assert_eq!(here + absent, 1, "{name}: {here} here, {absent} absent");
    }
    for (name, _) in ABSENT {
        assert!(PEERS.contains(name), "{name} is nobody's family");
    }
}

fn document() -> String {
    let mut text = "# Metrics\n\nMade from the table of families (`rust/metrics/src/families.rs`). `/metrics` has them \
        under `frizzen:` (those of the HTTP server have no prefix), and `--metrics-compat vllm` those that vLLM has \
        under `vllm:` too; counters end in `_total`. A replica's series have its `engine` label.\n\n"
        .to_owned();
    text += "| family | what it says |\n|---|---|\n";
    for (name, help) in FAMILIES {
        writeln!(text, "| `{name}` | {help} |").unwrap();
    }
    text += "\n## Where a request's time goes\n\n`request_queue_time_seconds`, `request_prefill_time_seconds` and \
        `request_decode_time_seconds` follow one another. Of the decode time, `request_lost_to_prefill_seconds` is what \
        the prompts of others cost: of each step in which the request decoded beside somebody's prefill, the time \
        beyond the mean (recent steps weigh most) of the steps without prefill that decoded about as many tokens, to \
        the power of two. Until such a step was measured nothing counts. `request_detokenize_seconds` and \
        `request_backpressure_seconds` are the front end's, and pass while the engine works: the second is the time \
        from handing a chunk of a stream to the connection until the connection asks for the next one.\n\n\
        A request with `\"timings\": true` gets the same of itself: `timings` beside the usage of an answer, or in the \
        last event of a stream, with one entry per choice: `queue_ms`, `prefill_ms`, `prefill_tokens` (`cached`, \
        `computed`), `decode_ms`, `decode_tokens`, `lost_to_prefill_ms`, `preemptions`, `detokenize_ms`, \
        `backpressure_ms`.\n\nThe three `kv_block_` families follow one block in sixteen.\n";
    text += "\n## Families of the peers that are not here\n\n| family | why |\n|---|---|\n";
    for (name, why) in ABSENT {
        writeln!(text, "| `{name}` | {why} |").unwrap();
    }
    text
}

#[test]
fn the_document_is_the_tables_own() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    if std::env::var_os("FRIZZEN_WRITE_DOCS").is_some() {
        std::fs::write(file, document()).unwrap();
    }
    let written = std::fs::read_to_string(file).unwrap_or_default();
    assert!(written == document(), "run with FRIZZEN_WRITE_DOCS=1 to write docs/metrics.md again");
}
