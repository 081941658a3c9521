//! The HTTP server. It knows the engine by its handle and never touches Python.
//!
//! * [`config`]: the flags; [`familiar`]: those of the peers that change nothing; [`defaults`]: what requests get that do not
//!   say. [`state`]: what handlers share.
//! * [`routes`]: the route table; [`openapi`]: its description. [`edge`]: request ids, keys, metrics. [`handlers`],
//!   [`dialects`], [`administration`], [`sglang`]: the handlers. [`body`], [`auth`], [`ids`], [`error`]: their parts.
//! * [`request`]: bodies, parsed and checked. [`prepare`], [`lower`]: from there to the engine.
//! * [`parsing`]: which parsers read the model's text. [`parse`]: them alone, without a model.
//! * [`pooling`]: embeddings, classification, scores and rankings.
//! * [`store`]: responses, for requests that refer to them. [`background`]: those that are made after their answer;
//!   [`event_log`]: their events.
//! * [`output`]: from the engine's deltas to the bytes of an answer.
//! * [`replicas`]: several engines on one host, and headless ones.
//! * [`connections`]: listening and accepting; [`tls`]: certificates and handshakes. [`serve`], [`shutdown`]: life of a server. [`logging`]: the log.
//!   [`mock`]: a server without a model.
//! * [`speculation`]: how drafts fare. [`traces`]: OpenTelemetry, if it is asked for. [`worker_report`]: what only the worker
//!   can count, for the metrics.

pub mod administration;
pub mod auth;
mod background;
pub mod body;
pub mod config;
pub mod connections;
pub mod defaults;
pub mod dialects;
pub mod edge;
mod enforce;
pub mod error;
mod event_log;
pub mod familiar;
pub mod handlers;
pub mod ids;
mod json;
pub mod logging;
pub mod lower;
pub mod mock;
pub mod openapi;
pub mod output;
pub mod parse;
pub mod parsing;
pub mod pooling;
pub mod prepare;
pub mod replicas;
pub mod request;
pub mod routes;
pub mod serve;
pub mod sglang;
pub mod shutdown;
pub mod speculation;
pub mod state;
pub mod store;
pub mod tls;
pub mod traces;
pub mod worker_report;

pub use config::ServerConfig;
pub use serve::{Outcome, runtime, runtime_goes_on};
pub use shutdown::ShutdownRequests;
pub use state::{AppState, SharedState, TextModel};
