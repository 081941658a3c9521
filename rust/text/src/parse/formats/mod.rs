//! One file per family of tool formats. Each exports its row of the [`registry`](super::registry) and, where no other
//! family shares it, its machine. [`section`] and [`elements`] are machines that several families share.

pub(super) mod deepseek;
mod elements;
pub(super) mod glm;
pub(super) mod harmony;
pub(super) mod hermes;
pub(super) mod kimi;
pub(super) mod llama;
pub(super) mod mistral;
pub(super) mod pythonic;
pub(super) mod qwen_coder;
mod section;
