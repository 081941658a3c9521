//! `/v1/chat/completions`.

use frizzen_core::TokenId;
use frizzen_text::parse::ReasoningFormat;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::request::common::{Common, Limits};
use crate::request::fields::Fields;
use crate::request::tools::{ToolCalls, ToolChoice, tools};

const MEDIA: [&str; 6] = ["image_url", "input_image", "input_audio", "audio_url", "video_url", "file"];

/// How a conversation becomes a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The messages as they came; the template's renderer checks them.
    pub messages: Vec<Value>,
    /// Tool declarations for the template, if any.
    pub tools: Option<Vec<Value>>,
    /// Documents for the template, if any.
    pub documents: Option<Vec<Value>>,
    /// End the prompt where the assistant's next message begins.
    pub add_generation_prompt: bool,
    /// End the prompt within the last message, so that the model goes on with it.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub template_kwargs: Map<String, Value>,
}

/// A chat completion as it was asked for.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    /// The shared fields, `max_tokens` and `logprobs` filled in.
    pub common: Common,
    /// The conversation.
    pub conversation: Conversation,
    /// Its ids, if the client knows them: the rendered conversation is not tokenised again.
    pub prompt_ids: Option<Vec<TokenId>>,
    /// Whether the model may call tools.
    pub tool_choice: ToolChoice,
    /// It may call these only; `None` is all.
    pub allowed_tools: Option<Vec<String>>,
    /// It may make several calls.
    pub parallel_tool_calls: bool,
    /// Most tokens of its reasoning.
    pub thinking_budget: Option<u32>,
    /// Show its reasoning.
    pub include_reasoning: bool,
    /// Stop strings are looked for in its reasoning too.
    pub stop_in_reasoning: bool,
}

impl ChatRequest {
    /// Reads and checks a body.
    pub fn read(mut fields: Fields, limits: &Limits) -> Result<Self, ApiError> {
        let conversation = conversation(&mut fields)?;
        let mut common = Common::read(&mut fields, limits)?;
        common.params.logprobs = logprobs(&mut fields, limits.params.max_logprobs)?;
        let newer = fields.integer("max_completion_tokens", 0..=u32::MAX)?;
        let older = fields.integer("max_tokens", 0..=u32::MAX)?;
        common.params.max_tokens = newer.or(older);
        let ToolCalls { choice: tool_choice, allowed: allowed_tools } =
            ToolChoice::read(&mut fields, conversation.tools.as_deref())?;
        tool_choice.check(limits.format.tools.is_some())?;
        let include_reasoning = fields.boolean("include_reasoning")?.unwrap_or(true);
        if !include_reasoning && limits.format.reasoning.is_none() {
            let message = "reasoning can be left out only by a server with --reasoning-parser";
            return Err(ApiError::unsupported("include_reasoning", message));
        }
        let thinking_budget = thinking_budget(&mut fields, limits)?;
        let prompt_ids = fields.token_ids("prompt_token_ids", limits.params.vocab_size)?;
        if prompt_ids.as_ref().is_some_and(Vec::is_empty) {
            let message = "prompt_token_ids must have at least one token id";
            return Err(ApiError::invalid("prompt_token_ids", message));
        }
        Ok(Self {
            common,
            conversation,
            prompt_ids,
            tool_choice,
            allowed_tools,
            parallel_tool_calls: fields.boolean("parallel_tool_calls")?.unwrap_or(true),
            thinking_budget,
            include_reasoning,
            stop_in_reasoning: fields.flag("stop_in_reasoning")?,
        })
    }
}

/// The most tokens of reasoning: -1 is no limit.
fn thinking_budget(fields: &mut Fields, limits: &Limits) -> Result<Option<u32>, ApiError> {
    let mut budget = None;
    for name in ["thinking_token_budget", "thinking_budget"] {
        let Some(asked) = fields.integer::<i64>(name, -1..=i64::from(u32::MAX))? else { continue };
        if asked >= 0 && limits.format.reasoning.and_then(ReasoningFormat::tags).is_none() {
            let message = format!(
                "{name} needs a server with a --reasoning-parser whose reasoning stands between tags, which can be counted"
            );
            return Err(ApiError::unsupported(name, message));
        }
        budget = budget.or(u32::try_from(asked).ok());
    }
    Ok(budget)
}

/// Reads the fields that make the prompt. `/tokenize` takes the same ones.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    conversation_ending(fields, true)
}

/// The same of a conversation that ends with an opened answer, if the body does not say, as `answers` says.
pub fn conversation_ending(fields: &mut Fields, answers: bool) -> Result<Conversation, ApiError> {
    let messages = fields
        .list("messages")?
        .ok_or_else(|| ApiError::invalid("messages", "messages must be a list of at least one message"))?;
    refuse_media(&messages)?;
    let continue_final = fields.flag("continue_final_message")?;
    let generation = fields.boolean("add_generation_prompt")?;
    if continue_final && generation == Some(true) {
        return Err(ApiError::invalid(
            "continue_final_message",
            "continue_final_message and add_generation_prompt exclude each other",
        ));
    }
    let mut template_kwargs = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.string("reasoning_effort")? {
        template_kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
    }
    if let Some(thinks) = fields.boolean("enable_thinking")? {
        template_kwargs.entry("enable_thinking").or_insert(Value::Bool(thinks));
    }
    Ok(Conversation {
        messages,
        tools: tools(fields)?,
        documents: fields.list("documents")?,
        add_generation_prompt: generation.unwrap_or(answers && !continue_final),
        continue_final_message: continue_final,
        template_kwargs,
    })
}

/// Images and sounds are known and not supported, which is another thing than a type that nobody knows.
fn refuse_media(messages: &[Value]) -> Result<(), ApiError> {
    for (index, message) in messages.iter().enumerate() {
        let parts = message.get("content").and_then(Value::as_array).into_iter().flatten();
        let media = parts.filter_map(|part| part.get("type")?.as_str()).find(|kind| MEDIA.contains(kind));
        if let Some(kind) = media {
            let message =
                format!("messages[{index}]: parts of the type {kind} are not supported, only text is");
            return Err(ApiError::unsupported("messages", message));
        }
    }
    Ok(())
}

/// The number of alternatives per token, `None` without log-probabilities.
fn logprobs(fields: &mut Fields, limit: u32) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?;
    let top = fields.integer("top_logprobs", 0..=limit)?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(ApiError::invalid(
            "top_logprobs",
            format!("top_logprobs is {top}, but logprobs is not true"),
        ));
    }
    Ok(wanted.then_some(top))
}
