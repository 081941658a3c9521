//! From a body to a lowered request: parse, check, render, tokenise, compile its grammar. Synchronous, so that long bodies can be moved off
//! the threads that serve everybody else.

use std::sync::Arc;

use frizzen_core::TokenId;
use frizzen_grammar::Grammar;
use frizzen_text::parse::{Format, Setup, Start, ToolSchemas};

use crate::error::ApiError;
use crate::ids::is_name;
use crate::lower::{Lowered, Plan, PromptKind, Reading, TokenPrompt};
use crate::output::message::{Reader, Shape};
use crate::output::writer::Header;
use crate::output::{Echo, Envelope, Pieces, chat, completion};
use crate::pooling::run::check_generates;
use crate::request::{ChatRequest, Common, CompletionRequest, Dialect, Fields, Limits, Prompt, ToolChoice};
use crate::state::{AppState, TextModel, unix_time};

/// Bodies longer than this many bytes are prepared on the blocking pool.
const INLINE: usize = 4096;

/// Prepares a body, wherever that disturbs nobody.
pub async fn prepare(
    state: &Arc<AppState>,
    dialect: Dialect,
    body: bytes::Bytes,
    name: Arc<str>,
) -> Result<Lowered, ApiError> {
    if body.len() <= INLINE && !may_ask_for_grammar(&body) {
        return prepare_now(state, dialect, &body, name);
    }
    let state = Arc::clone(state);
    off_thread(move || prepare_now(&state, dialect, &body, name)).await
}

/// True if the body may name a field whose grammar has to be compiled. A field that is spelled with escapes is missed, and
/// then prepared where it delays others.
fn may_ask_for_grammar(body: &[u8]) -> bool {
    let names = [&b"response_format"[..], b"structured_outputs"];
    names.iter().any(|name| body.windows(name.len()).any(|part| part == *name))
}

/// Runs work of more than a few dozen microseconds where it delays no other request.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failure) if failure.is_panic() => std::panic::resume_unwind(failure.into_panic()),
        // The runtime is shutting down.
        Err(_) => Err(ApiError::busy("the server is shutting down")),
    }
}

fn prepare_now(state: &AppState, dialect: Dialect, body: &[u8], name: Arc<str>) -> Result<Lowered, ApiError> {
    let (info, model) = state.model()?;
    check_generates(info)?;
    let limits = state.limits(info, model.format);
    let (fields, unused) = Fields::parse(body, dialect)?;
    state.note(&unused);
    let job = Job { state, model, name };
    match dialect {
        Dialect::Chat => job.chat(&ChatRequest::read(fields, &limits)?, &limits),
        Dialect::Completions => job.completion(CompletionRequest::read(fields, &limits)?, &limits),
    }
}

/// What the steps of one preparation share.
struct Job<'a> {
    state: &'a AppState,
    model: &'a TextModel,
    name: Arc<str>,
}

fn as_count(n: Option<u32>) -> Option<usize> {
    n.map(|n| n as usize)
}

impl Job<'_> {
    fn chat(self, request: &ChatRequest, limits: &Limits) -> Result<Lowered, ApiError> {
        let ChatRequest { common, conversation, .. } = request;
        let served = self.state.check_model(common.model.as_deref())?;
        self.state.check_samples(common.n as usize)?;
        let kind = PromptKind {
            field: "messages",
            echo: false,
            continues_text: conversation.continue_final_message,
        };
        let plan = Plan::new(common, limits.params, kind)?;
        let text = self.model.render(conversation)?;
        let reading = self.reading(request, &text);
        let shape = Shape {
            reasoning: reading.format.reasoning.is_some() && request.include_reasoning,
            reasoning_content: self.state.http.parsing.emit_reasoning_content,
            parallel: request.parallel_tool_calls,
        };
        let readers = self.readers(request, &reading, shape);
        // The grammar binds from the first token on, which the template has made a token of reasoning.
        if let (Some(grammar), Start::Reasoning) = (&common.grammar, reading.start) {
            let message = format!(
                "{} cannot be enforced after reasoning, and the chat template has begun it; chat_template_kwargs may \
                 turn it off",
                grammar.field
            );
            return Err(ApiError::unsupported(grammar.field, message));
        }
        let plan = plan.reading(reading);
        let tokens: Arc<[TokenId]> =
            plan.tokenise(&text, common.add_special.unwrap_or(false), self.model)?.into();
        let grammar = self.state.grammar(common.grammar.as_ref())?;
        let name = self.answer_name(common);
        let writer = chat::Chat::new(
            envelope(
                &format!("chatcmpl-{name}"),
                served,
                ["chat.completion.chunk", "chat.completion"],
                common,
                grammar.as_deref(),
            ),
            self.pieces(common),
            Arc::clone(&tokens),
            as_count(common.params.logprobs),
            as_count(common.params.prompt_logprobs),
            readers,
            shape,
        );
        let prompts = [TokenPrompt { tokens, echo: None }];
        plan.lower(&prompts, grammar.as_ref(), &name, &self.model.tokenizer, Box::new(writer))
    }

    /// How the text of an answer to this prompt is read.
    fn reading(&self, request: &ChatRequest, prompt: &str) -> Reading {
        let calls = request.tool_choice != ToolChoice::None;
        let format = Format { tools: self.model.format.tools.filter(|_| calls), ..self.model.format };
        let opened = format.opened_by(prompt, request.conversation.continue_final_message);
        let start = if opened { Start::Reasoning } else { Start::Answer };
        Reading { format, start, stop_in_reasoning: request.stop_in_reasoning }
    }

    /// A reader for each choice, with call ids of its own.
    fn readers(&self, request: &ChatRequest, reading: &Reading, shape: Shape) -> Vec<Reader> {
        let tools = request.conversation.tools.as_deref().unwrap_or_default();
        let tools = Arc::new(if reading.format.tools.is_some() {
            ToolSchemas::new(tools)
        } else {
            ToolSchemas::default()
        });
        let reader = |_| {
            let setup =
                Setup { start: reading.start, tools: Arc::clone(&tools), id_seed: self.state.ids.seed() };
            Reader::new(reading.format, &setup, shape)
        };
        (0..request.common.n).map(reader).collect()
    }

    fn completion(self, request: CompletionRequest, limits: &Limits) -> Result<Lowered, ApiError> {
        let CompletionRequest { common, prompts, echo } = request;
        let served = self.state.check_model(common.model.as_deref())?;
        self.state.check_samples(prompts.len() * common.n as usize)?;
        let plan =
            Plan::new(&common, limits.params, PromptKind { field: "prompt", echo, continues_text: true })?;
        let prompts = prompts.into_iter().map(|prompt| self.token_prompt(prompt, &common, &plan, echo));
        let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
        let grammar = self.state.grammar(common.grammar.as_ref())?;
        let name = self.answer_name(&common);
        let writer = completion::Completion::new(
            envelope(&format!("cmpl-{name}"), served, ["text_completion"; 2], &common, grammar.as_deref()),
            self.pieces(&common),
            prompts.iter().map(|prompt| Arc::clone(&prompt.tokens)).collect(),
            common.n as usize,
            as_count(common.params.logprobs),
            as_count(common.params.prompt_logprobs),
        );
        plan.lower(&prompts, grammar.as_ref(), &name, &self.model.tokenizer, Box::new(writer))
    }

    fn token_prompt(
        &self,
        prompt: Prompt,
        common: &Common,
        plan: &Plan<'_>,
        echo: bool,
    ) -> Result<TokenPrompt, ApiError> {
        let (text, tokens) = match prompt {
            Prompt::Text(text) => {
                let tokens = plan.tokenise(&text, common.add_special.unwrap_or(true), self.model)?;
                (common.truncate.is_none().then_some(text), tokens)
            }
            Prompt::Ids(ids) => (None, plan.truncate(ids)),
        };
        let tokens: Arc<[TokenId]> = tokens.into();
        let echo = echo.then(|| Echo {
            text: text.unwrap_or_else(|| self.model.tokenizer.decode(&tokens, common.skip_special)).into(),
            tokens: Arc::clone(&tokens),
        });
        Ok(TokenPrompt { tokens, echo })
    }

    /// The caller's name for the request, or the one it was given at the edge.
    fn answer_name(&self, common: &Common) -> Arc<str> {
        let asked = common.request_id.as_deref().filter(|id| is_name(id));
        asked.map_or_else(|| Arc::clone(&self.name), Into::into)
    }

    fn pieces(&self, common: &Common) -> Pieces {
        Pieces::new(Arc::clone(&self.model.tokenizer), common.skip_special, common.shown.tokens_as_ids)
    }
}

fn envelope(
    id: &str,
    model: &str,
    [chunk, whole]: [&str; 2],
    common: &Common,
    grammar: Option<&Grammar>,
) -> Envelope {
    let grammar_enforced = grammar.map(|grammar| grammar.dropped().is_empty());
    let header = Header { id, created: unix_time(), model, grammar_enforced };
    Envelope::new(&header, chunk, whole, common.shown.clone())
}
