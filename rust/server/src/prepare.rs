//! From a body to a lowered request: parse, check, render, tokenise, compile its grammar. Synchronous, so that long bodies can be moved off
//! the threads that serve everybody else.

use std::sync::Arc;

use frizzen_core::TokenId;
use frizzen_grammar::Grammar;
use frizzen_text::parse::{Format, Setup, Start, ToolSchemas};
use serde_json::{Map, Value};

use crate::enforce::{self, Enforced};
use crate::error::ApiError;
use crate::ids::is_name;
use crate::lower::{Lowered, Plan, PromptKind, Reading, TokenPrompt};
use crate::output::message::{Reader, Shape};
use crate::output::messages::Messages;
use crate::output::native::{self as native_output, Native};
use crate::output::responses::Responses;
use crate::output::tokens::Tokens;
use crate::output::writer::Header;
use crate::output::{Echo, Envelope, Pieces, ShownPrompt, Writer, chat, completion};
use crate::pooling::run::check_generates;
use crate::request::{
    ChatRequest, Common, CompletionRequest, Dialect, Fields, Limits, Prompt, ResponsesRequest, ToolChoice,
    messages, native, tokens,
};
use crate::state::{AppState, TextModel, unix_time};
use crate::store::{Keep, Work};

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
    let names = ["response_format", "structured_outputs", "\"format\"", "output_format", "tools"];
    // What is not UTF-8 is not JSON, and asks for nothing.
    std::str::from_utf8(body).is_ok_and(|body| names.iter().any(|name| body.contains(name)))
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
    let limits = state.limits(info, model);
    let (fields, unused) = Fields::parse(body, dialect)?;
    state.note(&unused);
    let job = Job { state, model, name };
    match dialect {
        Dialect::Chat => job.chat(&ChatRequest::read(fields, &limits)?, &limits, Voice::Chat),
        Dialect::Messages => job.chat(&messages::read(fields, &limits)?, &limits, Voice::Messages),
        Dialect::Responses => {
            let recall = |id: &str| state.store.conversation(id);
            let request = ResponsesRequest::read(fields, &limits, &recall)?;
            if request.background && !state.store.is_on() {
                let message =
                    "background needs stored responses, and this server stores none (--response-store)";
                return Err(ApiError::unsupported("background", message));
            }
            let ResponsesRequest { chat, echo, store, background, input } = request;
            job.chat(&chat, &limits, Voice::Responses { echo, store, background, input })
                .map_err(|error| error.renamed(&[("messages", "input")]))
        }
        Dialect::Tokens => {
            let (request, unused) = tokens::read(fields, &limits)?;
            state.note(&unused);
            job.completion(request, &limits, &Form::Tokens)
        }
        Dialect::Generate => {
            let (request, unused) = native::read(fields, &limits)?;
            state.note(&unused);
            let form = Form::Native {
                is_list: request.is_list,
                logprob_start: request.logprob_start,
                with_text: request.text_in_logprobs,
            };
            job.completion(request.completion, &limits, &form)
        }
        // The others return vectors, and are prepared with them.
        _ => job.completion(CompletionRequest::read(fields, &limits)?, &limits, &Form::Completion),
    }
}

/// In whose words a conversation is answered.
enum Voice {
    Chat,
    Messages,
    /// What the answer repeats of the request, and whether it is kept.
    Responses {
        echo: Map<String, Value>,
        store: bool,
        background: bool,
        input: Vec<Value>,
    },
}

/// In which form a completion is answered.
enum Form {
    Completion,
    Tokens,
    Native { is_list: bool, logprob_start: Option<usize>, with_text: bool },
}

/// What a writer needs to know about an answer.
struct Said<'a> {
    name: &'a Arc<str>,
    served: &'a str,
    grammar: Option<&'a Grammar>,
    prompt: ShownPrompt,
    readers: Vec<Reader>,
    shape: Shape,
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
    fn chat(self, request: &ChatRequest, limits: &Limits, voice: Voice) -> Result<Lowered, ApiError> {
        let ChatRequest { common, conversation, .. } = request;
        let served = self.state.check_model(common.model.as_deref())?;
        self.state.check_samples("n", common.n as usize)?;
        let kind = PromptKind {
            field: if request.prompt_ids.is_some() { "prompt_token_ids" } else { "messages" },
            echo: false,
            continues_text: conversation.continue_final_message,
            streams_scores: false,
        };
        let plan = Plan::new(common, limits.params, kind)?;
        let text = self.model.render(conversation)?;
        let mut reading = self.reading(request, &text);
        let shape = Shape {
            reasoning: reading.format.reasoning.is_some() && request.include_reasoning,
            reasoning_content: self.state.http.parsing.emit_reasoning_content,
            parallel: request.parallel_tool_calls,
        };
        let wanted = enforce::of_chat(request, &reading, self.model)?;
        reading.setup.closed_by_tag = wanted.is_some();
        let readers = self.readers(request, &reading, shape);
        let start = reading.setup.start;
        let plan = plan.reading(reading);
        let tokens: Arc<[TokenId]> = match &request.prompt_ids {
            Some(ids) => plan.truncate(ids.clone()),
            None => plan.tokenise(&text, common.add_special.unwrap_or(false), self.model)?,
        }
        .into();
        let grammar = self.state.grammar(wanted.as_ref())?;
        let constraint = Enforced::after_reasoning(
            grammar.as_ref(),
            wanted.is_some_and(|wanted| wanted.spec.in_reasoning),
            request.thinking_budget,
            start,
            self.model.reasoning_markers.as_ref(),
        );
        let name = self.answer_name(common);
        let source = Some(&*text).filter(|_| request.prompt_ids.is_none() && common.truncate.is_none());
        let prompt = ShownPrompt::new(&tokens, source, &common.shown, &self.model.tokenizer)?;
        let said = Said { name: &name, served, grammar: grammar.as_deref(), prompt, readers, shape };
        let writer = self.writer(request, voice, said);
        let prompts = [TokenPrompt { tokens, echo: None }];
        plan.lower(&prompts, constraint.as_ref(), &name, &self.model.tokenizer, writer)
    }

    /// What writes the answer to a conversation.
    fn writer(&self, request: &ChatRequest, voice: Voice, said: Said<'_>) -> Box<dyn Writer> {
        let Said { name, served, grammar, prompt, readers, shape } = said;
        let common = &request.common;
        // The translated dialects have one choice.
        let reader = |mut readers: Vec<Reader>| readers.swap_remove(0);
        match voice {
            Voice::Chat => Box::new(chat::Chat::new(
                envelope(
                    &format!("chatcmpl-{name}"),
                    served,
                    ["chat.completion.chunk", "chat.completion"],
                    common,
                    grammar,
                ),
                self.pieces(common),
                prompt,
                as_count(common.params.num_alternatives()),
                as_count(common.params.prompt_logprobs),
                readers,
                shape,
            )),
            Voice::Messages => Box::new(Messages::new(name, served, enforced(grammar), reader(readers))),
            Voice::Responses { mut echo, store, background, input } => {
                if let Some(enforced) = enforced(grammar) {
                    echo.insert("grammar_enforced".to_owned(), enforced.into());
                }
                let messages = || {
                    let instructed =
                        echo.get("instructions").is_some_and(|instructions| !instructions.is_null());
                    request.conversation.messages[usize::from(instructed)..].to_vec()
                };
                let keep = (store && self.state.store.is_on()).then(|| Keep {
                    store: Arc::clone(&self.state.store),
                    messages: messages(),
                    input,
                    work: background.then(|| Work::new(common.shown.stream).into()),
                });
                let tokenizer = Arc::clone(&self.model.tokenizer);
                let asked = as_count(common.params.num_alternatives()).map(|top| (self.pieces(common), top));
                let writer = Responses::new((name, served), echo, reader(readers), tokenizer, keep);
                Box::new(writer.with_logprobs(asked))
            }
        }
    }

    /// How the text of an answer to this prompt is read.
    fn reading(&self, request: &ChatRequest, prompt: &str) -> Reading {
        let calls = request.tool_choice != ToolChoice::None;
        let format = Format { tools: self.model.format.tools.filter(|_| calls), ..self.model.format };
        let opened = format.opened_by(prompt, request.conversation.continue_final_message);
        let start = if opened { Start::Reasoning } else { Start::Answer };
        let tools = if format.tools.is_some() {
            ToolSchemas::new(request.conversation.tools.as_deref().unwrap_or_default())
        } else {
            ToolSchemas::default()
        };
        let forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let setup = Setup { start, tools: Arc::new(tools), forced, ..Setup::default() };
        Reading { format, setup, stop_in_reasoning: request.stop_in_reasoning }
    }

    /// A reader for each choice, with call ids of its own.
    fn readers(&self, request: &ChatRequest, reading: &Reading, shape: Shape) -> Vec<Reader> {
        let named = matches!(request.tool_choice, ToolChoice::Named(_));
        let reader = |_| {
            let setup = Setup { id_seed: self.state.ids.seed(), ..reading.setup.clone() };
            let reader = Reader::new(reading.format, &setup, shape);
            if named { reader.stopping_at_calls() } else { reader }
        };
        (0..request.common.n).map(reader).collect()
    }

    fn completion(
        self,
        request: CompletionRequest,
        limits: &Limits,
        form: &Form,
    ) -> Result<Lowered, ApiError> {
        let CompletionRequest { common, prompts, echo } = request;
        let served = self.state.check_model(common.model.as_deref())?;
        let field = match form {
            Form::Completion => "prompt",
            Form::Tokens => "token_ids",
            Form::Native { .. } => "sampling_params",
        };
        self.state.check_samples(field, prompts.len() * common.n as usize)?;
        let streams_scores = matches!(form, Form::Native { .. });
        let plan = Plan::new(
            &common,
            limits.params,
            PromptKind { field: "prompt", echo, continues_text: true, streams_scores },
        )?;
        let prompts = prompts.into_iter().map(|prompt| self.token_prompt(prompt, &common, &plan, echo));
        let (prompts, shown): (Vec<_>, Vec<_>) = prompts.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let grammar = self.state.grammar(common.grammar.as_ref())?;
        let name = self.answer_name(&common);
        let writer = self.completion_writer(form, &common, &name, served, shown, grammar.as_deref());
        let constraint = Enforced::plain(grammar.as_ref());
        plan.lower(&prompts, constraint.as_ref(), &name, &self.model.tokenizer, writer)
    }

    fn completion_writer(
        &self,
        form: &Form,
        common: &Common,
        name: &Arc<str>,
        served: &str,
        prompts: Vec<ShownPrompt>,
        grammar: Option<&Grammar>,
    ) -> Box<dyn Writer> {
        let logprobs = as_count(common.params.num_alternatives());
        let prompt_logprobs = as_count(common.params.prompt_logprobs);
        let samples = common.n as usize;
        match *form {
            Form::Tokens => {
                let header = Header {
                    id: name,
                    created: unix_time(),
                    model: served,
                    request_id: Some(name),
                    grammar_enforced: enforced(grammar),
                };
                let envelope = Envelope::new(&header, "generation.chunk", "generation", common.shown.clone());
                let prompt = Arc::clone(&prompts[0].tokens);
                Box::new(Tokens::new(envelope, self.pieces(common), prompt, logprobs, prompt_logprobs))
            }
            Form::Native { is_list, logprob_start, with_text } => {
                let shown = native_output::Shown {
                    id: Arc::clone(name),
                    is_list,
                    logprobs,
                    logprob_start,
                    with_text,
                };
                let prompts = prompts.into_iter().map(|prompt| prompt.tokens).collect();
                Box::new(Native::new(shown, self.pieces(common), prompts, samples))
            }
            Form::Completion => {
                let id = format!("cmpl-{name}");
                let envelope = envelope(&id, served, ["text_completion"; 2], common, grammar);
                Box::new(completion::Completion::new(
                    envelope,
                    self.pieces(common),
                    prompts,
                    samples,
                    logprobs,
                    prompt_logprobs,
                ))
            }
        }
    }

    fn token_prompt(
        &self,
        prompt: Prompt,
        common: &Common,
        plan: &Plan<'_>,
        echo: bool,
    ) -> Result<(TokenPrompt, ShownPrompt), ApiError> {
        let (text, tokens) = match prompt {
            Prompt::Text(text) => {
                let tokens = plan.tokenise(&text, common.add_special.unwrap_or(true), self.model)?;
                (common.truncate.is_none().then_some(text), tokens)
            }
            Prompt::Ids(ids) => (None, plan.truncate(ids)),
        };
        let tokens: Arc<[TokenId]> = tokens.into();
        let shown = ShownPrompt::new(&tokens, text.as_deref(), &common.shown, &self.model.tokenizer)?;
        let echo = echo.then(|| Echo {
            text: text.unwrap_or_else(|| self.model.tokenizer.decode(&tokens, common.skip_special)).into(),
            tokens: Arc::clone(&tokens),
        });
        Ok((TokenPrompt { tokens, echo }, shown))
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

/// Whether every part of the grammar is enforced; `None` if none was asked for.
fn enforced(grammar: Option<&Grammar>) -> Option<bool> {
    grammar.map(|grammar| grammar.dropped().is_empty())
}

fn envelope(
    id: &str,
    model: &str,
    [chunk, whole]: [&str; 2],
    common: &Common,
    grammar: Option<&Grammar>,
) -> Envelope {
    let header =
        Header { id, created: unix_time(), model, request_id: None, grammar_enforced: enforced(grammar) };
    Envelope::new(&header, chunk, whole, common.shown.clone())
}
