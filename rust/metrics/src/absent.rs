//! Families of the peers that are not here, and why: what the list of families is held against.

/// The name without its prefix and `_total`, and the reason.
pub const ABSENT: &[(&str, &str)] = &[
    ("lora_requests_info", NO_LORA),
    ("external_prefix_cache_queries", NO_TRANSFER),
    ("external_prefix_cache_hits", NO_TRANSFER),
    ("estimated_flops_per_gpu", ESTIMATED),
    ("estimated_read_bytes_per_gpu", ESTIMATED),
    ("estimated_write_bytes_per_gpu", ESTIMATED),
    ("rl_weight_update_operation_duration_seconds", NO_UPDATES),
    ("rl_weight_update_operations_in_flight", NO_UPDATES),
    ("nixl_xfer_time_seconds", NO_TRANSFER),
    ("nixl_post_time_seconds", NO_TRANSFER),
    ("nixl_bytes_transferred", NO_TRANSFER),
    ("nixl_num_descriptors", NO_TRANSFER),
    ("nixl_num_failed_transfers", NO_TRANSFER),
    ("nixl_num_failed_notifications", NO_TRANSFER),
    ("nixl_num_kv_expired_reqs", NO_TRANSFER),
    ("mooncake_store_operation", NO_TRANSFER),
    ("num_requests_kv_fetch_by_stage", NO_TRANSFER),
    (
        "engine_sleep_state",
        "`/is_sleeping` says it; a sleeping server keeps its weights and memory, so there is one state",
    ),
    ("mm_cache_queries", NO_MEDIA),
    ("mm_cache_hits", NO_MEDIA),
    ("admission_rejections", "a full queue is a 503, counted by route and status in `http_requests`"),
    ("watermark_requests", "there is no watermarking"),
    ("websocket_connections_active", NO_SOCKETS),
    ("websocket_connections_total", NO_SOCKETS),
    ("websocket_duration_seconds", NO_SOCKETS),
];

const NO_LORA: &str = "there are no adapters";
const NO_TRANSFER: &str = "KV never comes from, or goes to, another engine or store";
const ESTIMATED: &str =
    "it is an estimate that nothing measures; `/v1/plan` has the bytes, `benches/` the limits";
const NO_UPDATES: &str = "weights are not updated while the server runs";
const NO_MEDIA: &str = "only text goes in and out";
const NO_SOCKETS: &str = "there are no web sockets";
