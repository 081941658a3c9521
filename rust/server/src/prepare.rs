//! From a body to a lowered request: parse, check, render, tokenise. Synchronous, so that long bodies can be moved off
//! the threads that serve everybody else.

use std::sync::Arc;

use frizzen_core::TokenId;
use frizzen_text::{StreamOptions, TextStream};

use crate::error::ApiError;
use crate::lower::{self, Lowered, Plan, TokenPrompt};
use crate::output::dialect::Header;
use crate::output::{Dialect as Writer, Echo, Envelope, Pieces, chat, completion};
use crate::request::{ChatRequest, Common, CompletionRequest, Dialect, Fields, Prompt};
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
    if body.len() <= INLINE {
        return prepare_now(state, dialect, &body, name);
    }
    let state = Arc::clone(state);
    off_thread(move || prepare_now(&state, dialect, &body, name)).await
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
    let limits = state.limits(info);
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
    fn chat(self, request: &ChatRequest, limits: &crate::request::Limits) -> Result<Lowered, ApiError> {
        let common = &request.common;
        let model_name = self.state.check_model(common.model.as_deref())?;
        let plan = Plan::new(common, limits.params, "messages", false)?;
        let text = self.model.render(&request.conversation)?;
        let add_special = common.add_special.unwrap_or(false);
        let tokens: Arc<[TokenId]> = lower::tokenise(&text, add_special, common, self.model, &plan)?.into();
        let header = self.header("chatcmpl-", common);
        let envelope = header.envelope(model_name, "chat.completion.chunk", "chat.completion", common);
        let writer = chat::Chat::new(
            envelope,
            self.pieces(common),
            Arc::clone(&tokens),
            as_count(common.params.logprobs),
            as_count(common.params.prompt_logprobs),
            common.n as usize,
        );
        let prompts = [TokenPrompt { tokens, echo: None }];
        let continues = request.conversation.continue_final_message;
        self.lower(common, &plan, &prompts, &header.external, continues, Box::new(writer))
    }

    fn completion(
        self,
        request: CompletionRequest,
        limits: &crate::request::Limits,
    ) -> Result<Lowered, ApiError> {
        let CompletionRequest { common, prompts, echo } = request;
        let model_name = self.state.check_model(common.model.as_deref())?;
        let plan = Plan::new(&common, limits.params, "prompt", echo)?;
        let prompts = prompts
            .into_iter()
            .map(|prompt| self.token_prompt(prompt, &common, &plan, echo))
            .collect::<Result<Vec<_>, _>>()?;
        let header = self.header("cmpl-", &common);
        let envelope = header.envelope(model_name, "text_completion", "text_completion", &common);
        let writer = completion::Completion::new(
            envelope,
            self.pieces(&common),
            prompts.iter().map(|prompt| Arc::clone(&prompt.tokens)).collect(),
            common.n as usize,
            as_count(common.params.logprobs),
            as_count(common.params.prompt_logprobs),
        );
        self.lower(&common, &plan, &prompts, &header.external, true, Box::new(writer))
    }

    fn token_prompt(
        &self,
        prompt: Prompt,
        common: &Common,
        plan: &Plan,
        echo: bool,
    ) -> Result<TokenPrompt, ApiError> {
        let (text, tokens) = match prompt {
            Prompt::Text(text) => {
                let add_special = common.add_special.unwrap_or(true);
                let tokens = lower::tokenise(&text, add_special, common, self.model, plan)?;
                (common.truncate.is_none().then_some(text), tokens)
            }
            Prompt::Ids(ids) => (None, lower::truncate(ids, common)),
        };
        let tokens: Arc<[TokenId]> = tokens.into();
        let echo = echo.then(|| Echo {
            text: text.unwrap_or_else(|| self.model.tokenizer.decode(&tokens, common.skip_special)).into(),
            tokens: Arc::clone(&tokens),
        });
        Ok(TokenPrompt { tokens, echo })
    }

    fn header(&self, prefix: &str, common: &Common) -> AnswerName {
        let asked = common.request_id.as_deref().filter(|id| crate::ids::is_name(id));
        let external: Arc<str> = asked.map_or_else(|| Arc::clone(&self.name), Into::into);
        AnswerName { id: format!("{prefix}{external}"), external }
    }

    fn pieces(&self, common: &Common) -> Pieces {
        Pieces::new(Arc::clone(&self.model.tokenizer), common.skip_special, common.shown.tokens_as_ids)
    }

    fn lower(
        &self,
        common: &Common,
        plan: &Plan,
        prompts: &[TokenPrompt],
        external: &Arc<str>,
        continues_text: bool,
        writer: Box<dyn Writer>,
    ) -> Result<Lowered, ApiError> {
        let options = StreamOptions {
            stop: common.stop.clone(),
            include_stop_in_output: common.include_stop,
            skip_special_tokens: common.skip_special,
            min_tokens: common.params.min_tokens,
            continues_text,
            stop_after: None,
        };
        let text = || Ok(TextStream::new(Arc::clone(&self.model.tokenizer), &options)?);
        Lowered::new(common, plan, prompts, external, text, writer)
    }
}

/// The names of an answer.
struct AnswerName {
    /// As the client sees it.
    id: String,
    /// As the log sees it.
    external: Arc<str>,
}

impl AnswerName {
    fn envelope(&self, model: &str, chunk: &str, whole: &str, common: &Common) -> Envelope {
        let header = Header { id: &self.id, created: unix_time(), model };
        Envelope::new(&header, chunk, whole, common.shown.clone())
    }
}
