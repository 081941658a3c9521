//! The route table: the one source of the router, of 404 and 405, of who needs a key, and of the documentation.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};

use crate::administration;
use crate::dialects;
use crate::error::{ApiError, quoted};
use crate::handlers;
use crate::openapi;
use crate::pooling;
use crate::sglang;
use crate::state::SharedState;

/// The methods that routes use. A GET route answers HEAD too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET and HEAD.
    Get,
    /// POST.
    Post,
    /// DELETE.
    Delete,
}

/// Whether a route needs a key when keys are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Every route that is not written down as open.
    Key,
    /// Probes and scrapers, which carry no key.
    Open,
}

/// What answers a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Chat completions.
    Chat,
    /// Completions.
    Completions,
    /// Responses.
    Responses,
    /// A stored response.
    Response,
    /// Cancels a response.
    CancelResponse,
    /// Messages.
    Messages,
    /// The length of a prompt of messages.
    CountTokens,
    /// The list of models.
    Models,
    /// One model.
    Model,
    /// Health.
    Health,
    /// Liveness for `SageMaker`.
    Ping,
    /// Prometheus text.
    Metrics,
    /// The version.
    Version,
    /// Requests and blocks in use.
    Load,
    /// Text or messages to ids.
    Tokenize,
    /// Ids to text.
    Detokenize,
    /// A text to a message.
    Parse,
    /// The kernel plan.
    Plan,
    /// How speculation fares.
    Speculation,
    /// Embeddings.
    Embeddings,
    /// Vectors, whatever they are.
    Pooling,
    /// Probabilities of classes.
    Classify,
    /// How well texts fit.
    Score,
    /// Documents by how well they fit.
    Rerank,
    /// Forget cached prefixes.
    ResetPrefixCache,
    /// The `OpenAPI` description.
    OpenApi,
    /// The same for people.
    Docs,
    /// A chat or a completion, by its body.
    Invocations,
    /// What the tokenizer is.
    TokenizerInfo,
    /// Health by generating.
    HealthGenerate,
    /// Token in, token out.
    Tokens,
    /// SGLang's own.
    Generate,
    /// `Cohere`'s embeddings.
    CohereEmbed,
    /// What a stored response was asked.
    InputItems,
    /// Forgets a response.
    DeleteResponse,
    /// The model in a few words.
    ModelInfo,
    /// Abort by name.
    AbortRequests,
    /// Hold requests back.
    Pause,
    /// Take them again.
    Resume,
    /// Whether they are held back.
    IsPaused,
    /// Refuse requests.
    Sleep,
    /// Take them again.
    WakeUp,
    /// Whether they are refused.
    IsSleeping,
    /// Flags, model and limits.
    ServerInfo,
    /// The load of each engine, in SGLang's words.
    SglangLoad,
    /// The same in more of them.
    EveryLoad,
    /// Which weights.
    WeightVersion,
    /// A text's calls alone.
    ParseFunctionCall,
    /// A text's reasoning alone.
    SeparateReasoning,
    /// Known from the peers, and not served: 501.
    Unsupported,
}

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its path template.
    pub path: &'static str,
    /// 1: there from the first day; 2: users of the peers will miss it; 3: later.
    pub tier: u8,
    /// Whether it needs a key.
    pub auth: Auth,
    /// What answers it.
    pub endpoint: Endpoint,
    /// What it is for.
    pub doc: &'static str,
}

const fn get(path: &'static str, endpoint: Endpoint, doc: &'static str) -> Route {
    Route { method: Method::Get, path, tier: 1, auth: Auth::Key, endpoint, doc }
}

const fn post(path: &'static str, endpoint: Endpoint, doc: &'static str) -> Route {
    Route { method: Method::Post, ..get(path, endpoint, doc) }
}

const fn delete(path: &'static str, endpoint: Endpoint, doc: &'static str) -> Route {
    Route { method: Method::Delete, ..get(path, endpoint, doc) }
}

const fn open(route: Route) -> Route {
    Route { auth: Auth::Open, ..route }
}

const fn second(route: Route) -> Route {
    Route { tier: 2, ..route }
}

const fn absent(tier: u8, route: Route) -> Route {
    Route { tier, ..route }
}

const NONE: Endpoint = Endpoint::Unsupported;

/// Every route.
pub const ROUTES: &[Route] = &[
    post("/v1/chat/completions", Endpoint::Chat, "answer a conversation"),
    post("/v1/completions", Endpoint::Completions, "go on with a text or with token ids"),
    second(post("/v1/responses", Endpoint::Responses, "answer a conversation, as OpenAI's responses")),
    second(get(
        "/v1/responses/{id}",
        Endpoint::Response,
        "a stored response; ?stream=true its events, if it was streamed in the background, after ?starting_after",
    )),
    second(delete("/v1/responses/{id}", Endpoint::DeleteResponse, "forget a stored response")),
    second(get("/v1/responses/{id}/input_items", Endpoint::InputItems, "what a stored response answers")),
    second(post(
        "/v1/responses/{id}/cancel",
        Endpoint::CancelResponse,
        "end one that is made in the background",
    )),
    second(post("/v1/messages", Endpoint::Messages, "answer a conversation, as Anthropic's messages")),
    second(post(
        "/v1/messages/count_tokens",
        Endpoint::CountTokens,
        "the prompt's tokens of such a conversation",
    )),
    get("/v1/models", Endpoint::Models, "the names under which the model answers"),
    get("/v1/models/{*id}", Endpoint::Model, "one of these names"),
    open(get("/health", Endpoint::Health, "200 when ready, 503 with the phase otherwise")),
    open(get("/ping", Endpoint::Ping, "200 unless loading or dead")),
    open(get("/metrics", Endpoint::Metrics, "Prometheus text, or OpenMetrics by Accept")),
    get("/version", Endpoint::Version, "the version of this build"),
    get("/load", Endpoint::Load, "requests and KV blocks in use"),
    post("/tokenize", Endpoint::Tokenize, "the ids of a text or of a rendered conversation"),
    post("/detokenize", Endpoint::Detokenize, "the text of ids"),
    post("/v1/parse", Endpoint::Parse, "the message that the parsers make of a text"),
    get("/v1/plan", Endpoint::Plan, "which kernel serves each operation, and why"),
    get("/v1/speculation", Endpoint::Speculation, "who drafts, whether it pays off, and why"),
    post("/reset_prefix_cache", Endpoint::ResetPrefixCache, "forget cached prefixes, if no request runs"),
    post("/flush_cache", Endpoint::ResetPrefixCache, "another name of /reset_prefix_cache"),
    get("/openapi.json", Endpoint::OpenApi, "this list, as OpenAPI 3.1"),
    get("/docs", Endpoint::Docs, "this list, for people"),
    post(
        "/invocations",
        Endpoint::Invocations,
        "SageMaker's one route: a chat if there are messages, else a completion",
    ),
    get("/tokenizer_info", Endpoint::TokenizerInfo, "special tokens, sizes and chat template"),
    second(get("/health_generate", Endpoint::HealthGenerate, "health by generating one token")),
    second(post("/inference/v1/generate", Endpoint::Tokens, "token ids in, token ids out")),
    second(post("/abort_requests", Endpoint::AbortRequests, "abort by name, by prefix, or all")),
    second(post("/abort_request", Endpoint::AbortRequests, "another name of /abort_requests")),
    second(post(
        "/pause",
        Endpoint::Pause,
        "hold new requests back; ?mode=abort, wait or keep for those that run",
    )),
    second(post("/resume", Endpoint::Resume, "take requests again")),
    second(get("/is_paused", Endpoint::IsPaused, "whether requests are held back")),
    second(post("/pause_generation", Endpoint::Pause, "another name of /pause")),
    second(post("/continue_generation", Endpoint::Resume, "another name of /resume")),
    second(post("/sleep", Endpoint::Sleep, "refuse requests and drop cached prefixes; ?level=0 keeps them")),
    second(post("/wake_up", Endpoint::WakeUp, "take requests again")),
    second(get("/is_sleeping", Endpoint::IsSleeping, "whether requests are refused")),
    second(post("/release_memory_occupation", Endpoint::Sleep, "another name of /sleep")),
    second(post("/resume_memory_occupation", Endpoint::WakeUp, "another name of /wake_up")),
    second(get("/server_info", Endpoint::ServerInfo, "flags, model and limits; no keys")),
    second(get("/get_server_info", Endpoint::ServerInfo, "another name of /server_info")),
    second(get("/get_load", Endpoint::SglangLoad, "requests and tokens of each engine, as SGLang's")),
    second(get("/v1/loads", Endpoint::EveryLoad, "the same and how full each is, as SGLang's")),
    second(get("/weight_version", Endpoint::WeightVersion, "the version of the weights, as SGLang's")),
    second(get("/get_weight_version", Endpoint::WeightVersion, "another name of /weight_version")),
    second(post("/v1/tokenize", Endpoint::Tokenize, "another name of /tokenize")),
    second(post("/v1/detokenize", Endpoint::Detokenize, "another name of /detokenize")),
    second(post(
        "/parse_function_call",
        Endpoint::ParseFunctionCall,
        "the calls that a text makes, as SGLang's; /v1/parse says more",
    )),
    second(post(
        "/separate_reasoning",
        Endpoint::SeparateReasoning,
        "the reasoning that a text begins with, as SGLang's; /v1/parse says more",
    )),
    post(
        "/v2/embed",
        Endpoint::CohereEmbed,
        "embeddings, as Cohere's; int8 and uint8 are steps of 1/127 from -1 to 1, not Cohere's own ranges",
    ),
    post("/v1/embeddings", Endpoint::Embeddings, "the embeddings of texts"),
    post("/pooling", Endpoint::Pooling, "the vectors of texts, whatever the model's are"),
    post("/classify", Endpoint::Classify, "the probability of each class"),
    post("/score", Endpoint::Score, "how well texts fit, one to each or pair by pair"),
    post("/v1/score", Endpoint::Score, "another name of /score"),
    post("/rerank", Endpoint::Rerank, "documents by how well they fit a query"),
    post("/v1/rerank", Endpoint::Rerank, "another name of /rerank"),
    post("/v2/rerank", Endpoint::Rerank, "another name of /rerank"),
    second(post(
        "/generate",
        Endpoint::Generate,
        "go on with a text or with token ids, as SGLang's own route",
    )),
    absent(2, post("/reset_mm_cache", NONE, "forget cached media")),
    absent(2, post("/reset_encoder_cache", NONE, "forget cached encodings")),
    absent(2, post("/update_weights_from_disk", NONE, "load other weights")),
    absent(2, post("/update_weights_from_tensor", NONE, "load other weights")),
    absent(2, post("/update_weights_from_distributed", NONE, "load other weights")),
    absent(2, post("/init_weights_update_group", NONE, "prepare to load other weights")),
    second(get("/get_model_info", Endpoint::ModelInfo, "the model in a few words, as SGLang's")),
    second(get("/model_info", Endpoint::ModelInfo, "another name of /get_model_info")),
    absent(2, post("/destroy_weights_update_group", NONE, "end loading other weights")),
    absent(2, post("/init_weight_transfer_engine", NONE, "prepare to load other weights")),
    absent(2, post("/update_weights", NONE, "load other weights")),
    absent(2, post("/get_weights_by_name", NONE, "show weights")),
    absent(2, get("/get_world_size", NONE, "the processes that weights are sent to")),
    absent(2, post("/v1/load_lora_adapter", NONE, "load an adapter")),
    absent(2, post("/v1/unload_lora_adapter", NONE, "unload an adapter")),
    absent(2, post("/load_lora_adapter", NONE, "load an adapter")),
    absent(2, post("/unload_lora_adapter", NONE, "unload an adapter")),
    absent(
        3,
        post("/v1/chat/completions/render", NONE, "the prompt of a conversation; /tokenize has its ids"),
    ),
    absent(3, post("/v1/completions/render", NONE, "the ids of a prompt; /tokenize has them")),
    absent(3, get("/kv_event_sources", NONE, "where events of the KV cache are published")),
    absent(3, post("/is_scaling_elastic_ep", NONE, "whether the number of replicas changes")),
    absent(3, post("/encode", NONE, "embeddings as SGLang's; /v1/embeddings has them")),
    absent(3, post("/configure_logging", NONE, "change what is logged")),
    absent(3, post("/freeze_gc", NONE, "spare objects the garbage collector")),
    absent(3, post("/slow_down", NONE, "take longer for each step")),
    absent(3, post("/start_expert_distribution_record", NONE, "record experts; /metrics counts them")),
    absent(3, post("/stop_expert_distribution_record", NONE, "record experts no more")),
    absent(3, post("/dump_expert_distribution_record", NONE, "write what was recorded")),
    absent(3, post("/start_profile", NONE, "start the profiler")),
    absent(3, post("/stop_profile", NONE, "stop the profiler")),
    absent(3, post("/collective_rpc", NONE, "call every worker")),
    absent(3, post("/v1/audio/transcriptions", NONE, "speech to text")),
    absent(3, post("/v1/audio/translations", NONE, "speech to English text")),
    absent(3, get("/v1/realtime", NONE, "the realtime socket")),
    absent(3, post("/scale_elastic_ep", NONE, "change the number of replicas")),
    absent(3, post("/open_session", NONE, "open a session")),
    absent(3, post("/close_session", NONE, "close a session")),
    absent(3, post("/generate_stream", NONE, "a stream in another dialect")),
    absent(3, get("/info", NONE, "the model's configuration in another dialect")),
];

impl Route {
    /// Whether its errors are in Anthropic's form.
    pub const fn is_anthropic(&self) -> bool {
        matches!(self.endpoint, Endpoint::Messages | Endpoint::CountTokens)
    }

    /// What the route makes the model do, in the words of OpenTelemetry's conventions; `None` if it asks no model.
    pub const fn operation(&self) -> Option<&'static str> {
        match self.endpoint {
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => Some("chat"),
            Endpoint::Completions | Endpoint::Tokens | Endpoint::Invocations => Some("text_completion"),
            Endpoint::Embeddings | Endpoint::Pooling => Some("embeddings"),
            Endpoint::Classify | Endpoint::Score | Endpoint::Rerank => Some("classify"),
            _ => None,
        }
    }
}

/// The route of a path template and method; HEAD counts as GET.
pub fn find(template: &str) -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(move |route| route.path == template)
}

/// The router of the whole table.
pub fn router() -> Router<SharedState> {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.path, method_router(route));
    }
    router.fallback(not_found).method_not_allowed_fallback(method_not_allowed)
}

fn method_router(route: &Route) -> MethodRouter<SharedState> {
    let filter = match route.method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    match route.endpoint {
        Endpoint::Chat => on(filter, handlers::chat),
        Endpoint::Completions => on(filter, handlers::completions),
        Endpoint::Responses => on(filter, dialects::responses),
        Endpoint::Response => on(filter, dialects::response),
        Endpoint::CancelResponse => on(filter, dialects::cancel_response),
        Endpoint::Messages => on(filter, dialects::messages),
        Endpoint::CountTokens => on(filter, dialects::count_tokens),
        Endpoint::Models => on(filter, handlers::models),
        Endpoint::Model => on(filter, handlers::model),
        Endpoint::Health => on(filter, handlers::health),
        Endpoint::Ping => on(filter, handlers::ping),
        Endpoint::Metrics => on(filter, handlers::metrics),
        Endpoint::Version => on(filter, handlers::version),
        Endpoint::Load => on(filter, handlers::load),
        Endpoint::Tokenize => on(filter, handlers::tokenize),
        Endpoint::Detokenize => on(filter, handlers::detokenize),
        Endpoint::Parse => on(filter, handlers::parse),
        Endpoint::Plan => on(filter, handlers::plan),
        Endpoint::Speculation => on(filter, handlers::speculation),
        Endpoint::Embeddings => on(filter, pooling::embeddings),
        Endpoint::Pooling => on(filter, pooling::pooling),
        Endpoint::Classify => on(filter, pooling::classify),
        Endpoint::Score => on(filter, pooling::compare::score),
        Endpoint::Rerank => on(filter, pooling::compare::rerank),
        Endpoint::ResetPrefixCache => on(filter, handlers::reset_prefix_cache),
        Endpoint::OpenApi => on(filter, openapi::json),
        Endpoint::Docs => on(filter, openapi::html),
        Endpoint::Invocations => on(filter, dialects::invocations),
        Endpoint::TokenizerInfo => on(filter, handlers::tokenizer_info),
        Endpoint::HealthGenerate => on(filter, administration::health_generate),
        Endpoint::Tokens => on(filter, dialects::tokens),
        Endpoint::Generate => on(filter, dialects::native),
        Endpoint::CohereEmbed => on(filter, pooling::cohere::embed),
        Endpoint::InputItems => on(filter, dialects::input_items),
        Endpoint::DeleteResponse => on(filter, dialects::delete_response),
        Endpoint::ModelInfo => on(filter, administration::model_info),
        Endpoint::AbortRequests => on(filter, administration::abort_requests),
        Endpoint::Pause => on(filter, administration::pause),
        Endpoint::Resume => on(filter, administration::resume),
        Endpoint::IsPaused => on(filter, administration::is_paused),
        Endpoint::Sleep => on(filter, administration::sleep),
        Endpoint::WakeUp => on(filter, administration::wake_up),
        Endpoint::IsSleeping => on(filter, administration::is_sleeping),
        Endpoint::ServerInfo => on(filter, administration::server_info),
        Endpoint::SglangLoad => on(filter, sglang::load),
        Endpoint::EveryLoad => on(filter, sglang::every_load),
        Endpoint::WeightVersion => on(filter, sglang::weight_version),
        Endpoint::ParseFunctionCall => on(filter, sglang::parse_function_call),
        Endpoint::SeparateReasoning => on(filter, sglang::separate_reasoning),
        Endpoint::Unsupported => on(filter, unsupported),
    }
}

async fn unsupported(path: MatchedPath) -> ApiError {
    let message = format!("{} is known but not supported by this server", path.as_str());
    ApiError::new(StatusCode::NOT_IMPLEMENTED, message)
}

async fn not_found(request: Request) -> ApiError {
    let path = quoted(request.uri().path(), 128);
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no route {path}"))
}

/// The methods of a path, as the header `allow` lists them.
fn allowed(template: &str) -> &'static str {
    let has = |method| find(template).any(|route| route.method == method);
    match (has(Method::Get), has(Method::Post), has(Method::Delete)) {
        (true, true, _) => "GET, HEAD, POST, OPTIONS",
        (true, false, true) => "GET, HEAD, DELETE, OPTIONS",
        (true, false, false) => "GET, HEAD, OPTIONS",
        (false, _, _) => "POST, OPTIONS",
    }
}

async fn method_not_allowed(request: Request) -> Response {
    use axum::response::IntoResponse as _;

    let template = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let allow = allowed(template);
    if request.method() == axum::http::Method::OPTIONS {
        return (StatusCode::NO_CONTENT, [(ALLOW, HeaderValue::from_static(allow))]).into_response();
    }
    let message = format!("{template} takes {allow}, not {}", quoted(request.method().as_str(), 16));
    ApiError { allow: Some(allow), ..ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message) }.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_route_stands_twice() {
        for (index, route) in ROUTES.iter().enumerate() {
            let twin =
                ROUTES[..index].iter().find(|other| other.path == route.path && other.method == route.method);
            assert!(twin.is_none(), "{}", route.path);
        }
    }

    #[test]
    fn only_probes_are_open_vllm_58144() {
        let open: Vec<&str> =
            ROUTES.iter().filter(|route| route.auth == Auth::Open).map(|route| route.path).collect();
        assert_eq!(open, ["/health", "/ping", "/metrics"]);
    }

    #[test]
    fn the_table_makes_a_router() {
        // axum panics on a path template that it cannot parse and on an overlap.
        let _ = router();
    }

    #[test]
    fn every_route_says_what_it_is_for() {
        assert!(ROUTES.iter().all(|route| !route.doc.is_empty() && (1..=3).contains(&route.tier)));
    }
}
