//! The HTTP server. It knows the engine by its handle and never touches Python.
//!
//! * [`config`]: the flags. [`state`]: what handlers share.
//! * [`routes`]: the route table. [`edge`]: request ids, keys, metrics. [`handlers`]: the handlers. [`body`],
//!   [`auth`], [`ids`], [`error`]: their parts.
//! * [`request`]: bodies, parsed and checked. [`prepare`], [`lower`]: from there to the engine.
//! * [`parsing`]: which parsers read the model's text. [`parse`]: them alone, without a model.
//! * [`output`]: from the engine's deltas to the bytes of an answer.
//! * [`replicas`]: several engines on one host, and headless ones.
//! * [`worker_report`]: what only the worker can count, for the metrics.
//! * [`serve`], [`shutdown`]: life of a server. [`logging`]: the log. [`mock`]: a server without a model.

pub mod auth;
pub mod body;
pub mod config;
pub mod edge;
pub mod error;
pub mod handlers;
pub mod ids;
mod json;
pub mod logging;
pub mod lower;
pub mod mock;
pub mod output;
pub mod parse;
pub mod parsing;
pub mod prepare;
pub mod replicas;
pub mod request;
pub mod routes;
pub mod serve;
pub mod shutdown;
pub mod state;
pub mod worker_report;

pub use config::ServerConfig;
pub use serve::{Outcome, runtime};
pub use shutdown::ShutdownRequests;
pub use state::{AppState, SharedState, TextModel};
