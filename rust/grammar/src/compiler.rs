//! From specifications to grammars, under limits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frizzen_core::TokenId;
use frizzen_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;

use crate::gbnf;
use crate::grammar::{Grammar, reason};
use crate::part::{self, Special, escaped};
use crate::schema;
use crate::spec::{GrammarError, GrammarKind, GrammarSpec, Whitespace};
use crate::vocabulary;

/// One space, or a line break and an indentation.
const BOUNDED_SPACE: &str = r" |\r?\n( {0,24}|\t{0,12})";
/// Stack of a compilation: schemas and grammars are recursive, and so is their compiler.
const STACK: usize = 64 << 20;

/// What one specification may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// Bytes of a specification.
    pub max_bytes: usize,
    /// Brackets within brackets, in regular expressions and grammars.
    pub max_nesting: usize,
    /// Time of a compilation, the wait for others included.
    pub timeout: Duration,
    /// Compilations at the same time.
    pub max_parallel: usize,
    /// Grammars that are kept.
    pub max_cached: usize,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self {
            max_bytes: 256 << 10,
            max_nesting: 200,
            timeout: Duration::from_secs(5),
            max_parallel: 4,
            max_cached: 64,
        }
    }
}

struct Inner {
    factory: ParserFactory,
    end: Arc<[TokenId]>,
    special: Vec<Special>,
    running: Mutex<usize>,
    freed: Condvar,
    /// Most recently used first.
    cache: Mutex<VecDeque<(GrammarSpec, Arc<Grammar>)>>,
}

/// Compiles the grammars of one model, and keeps them. Cheap to clone.
#[derive(Clone)]
pub struct GrammarCompiler {
    inner: Arc<Inner>,
    limits: GrammarLimits,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("GrammarCompiler").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place among the compilations that run; freed when it is dropped.
struct Place(Arc<Inner>);

impl Drop for Place {
    fn drop(&mut self) {
        *locked(&self.0.running) -= 1;
        self.0.freed.notify_one();
    }
}

impl GrammarCompiler {
    /// A compiler for a model with `vocab_size` logits and these end-of-sequence ids.
    ///
    /// Takes a fraction of a second: the vocabulary is sorted into tries.
    ///
    /// # Errors
    /// A vocabulary that the grammar engine cannot take.
    pub fn new(
        tokenizer: &Tokenizer,
        vocab_size: u32,
        eos: &[TokenId],
        limits: GrammarLimits,
    ) -> Result<Self, GrammarError> {
        let environment = vocabulary::environment(tokenizer, vocab_size, eos);
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| {
                GrammarError::new(format!("the vocabulary cannot be used: {}", reason(&error)))
            })?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let inner = Inner {
            factory,
            end: eos.into(),
            special: vocabulary::special(tokenizer, vocab_size, eos),
            running: Mutex::new(0),
            freed: Condvar::new(),
            cache: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner), limits })
    }

    /// The grammar of `spec`: a kept one, or a new one. Blocks for at most the time limit; not for async threads.
    ///
    /// # Errors
    /// A specification that is too large, takes too long, cannot be enforced, or that nothing satisfies.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Arc<Grammar>, GrammarError> {
        if let Some(grammar) = self.cached(spec) {
            return Ok(grammar);
        }
        self.check_size(spec)?;
        let started = Instant::now();
        let place = self.place(started)?;
        let (sender, receiver) = channel();
        let (inner, job) = (Arc::clone(&self.inner), spec.clone());
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        let spawned = thread.spawn(move || {
            let place = place;
            let result = compile(&inner, &job);
            drop(place);
            // Nobody waits any more once the time is up.
            let _ = sender.send(result);
        });
        spawned.map_err(|error| GrammarError::new(format!("no thread for the compilation: {error}")))?;
        let left = self.limits.timeout.saturating_sub(started.elapsed());
        match receiver.recv_timeout(left) {
            Ok(result) => {
                let grammar = Arc::new(result?);
                self.keep(spec, &grammar);
                Ok(grammar)
            }
            Err(RecvTimeoutError::Timeout) => Err(self.too_slow()),
            Err(RecvTimeoutError::Disconnected) => Err(GrammarError::new("the compilation failed")),
        }
    }

    fn too_slow(&self) -> GrammarError {
        let limit = self.limits.timeout.as_millis();
        GrammarError::new(format!("the compilation takes more than {limit} ms"))
    }

    fn check_size(&self, spec: &GrammarSpec) -> Result<(), GrammarError> {
        let (size, limit) = (spec.len(), self.limits.max_bytes);
        if size > limit {
            return Err(GrammarError::new(format!("it has {size} bytes, the limit is {limit}")));
        }
        let texts = match &spec.kind {
            GrammarKind::Regex(text) | GrammarKind::Lark(text) => vec![text.as_str()],
            GrammarKind::Parts(part) => part.nested_texts(),
            GrammarKind::Json(_) | GrammarKind::Choice(_) => Vec::new(),
        };
        for text in texts {
            let (depth, limit) = (nesting(text), self.limits.max_nesting);
            if depth > limit {
                return Err(GrammarError::new(format!(
                    "its brackets are {depth} deep, the limit is {limit}"
                )));
            }
        }
        Ok(())
    }

    fn place(&self, started: Instant) -> Result<Place, GrammarError> {
        let left = self.limits.timeout.saturating_sub(started.elapsed());
        let full = |running: &mut usize| *running >= self.limits.max_parallel;
        let waited = self.inner.freed.wait_timeout_while(locked(&self.inner.running), left, full);
        let (mut running, wait) = waited.unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            return Err(self.too_slow());
        }
        *running += 1;
        Ok(Place(Arc::clone(&self.inner)))
    }

    fn cached(&self, spec: &GrammarSpec) -> Option<Arc<Grammar>> {
        let mut cache = locked(&self.inner.cache);
        let at = cache.iter().position(|(kept, _)| kept == spec)?;
        let entry = cache.remove(at)?;
        let grammar = Arc::clone(&entry.1);
        cache.push_front(entry);
        Some(grammar)
    }

    fn keep(&self, spec: &GrammarSpec, grammar: &Arc<Grammar>) {
        let mut cache = locked(&self.inner.cache);
        // Another request may have compiled the same meanwhile.
        if !cache.iter().any(|(kept, _)| kept == spec) {
            cache.push_front((spec.clone(), Arc::clone(grammar)));
            cache.truncate(self.limits.max_cached);
        }
    }
}

/// The depth of brackets, escaped ones not counted: an upper bound of the compiler's recursion.
fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest, mut escaped) = (0_usize, 0, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn compile(inner: &Inner, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
    let (grammar, mut dropped) = lower(spec, &inner.special)?;
    let parser = inner.factory.create_parser(grammar).map_err(|error| {
        let reason = reason(&error);
        // A regular expression is wrapped in a grammar, whose lines nobody asked for.
        let wrapped =
            matches!(spec.kind, GrammarKind::Regex(_) | GrammarKind::Choice(_) | GrammarKind::Parts(_));
        let inner = reason.split_once("): ").filter(|(place, _)| wrapped && place.starts_with("at "));
        GrammarError::new(inner.map_or(reason.as_str(), |(_, inner)| inner))
    })?;
    let mut matcher = Matcher::new(Ok(parser));
    let warnings = matcher.grammar_warnings();
    if spec.lenient {
        dropped.extend(warnings.iter().map(reason));
    }
    let start = matcher.deep_clone();
    let grammar = Grammar::new(matcher, Arc::clone(&inner.end), dropped, spec.clone())?;
    first_choice(&start, inner.factory.tok_env()).map_err(|error| GrammarError::new(reason(&error)))?;
    Ok(grammar)
}

/// Goes on to where the first choice is and lets the matcher say what may follow there. A grammar that begins with text of
/// its own, as a forced call does, is too complex there and not at its first token.
fn first_choice(start: &Matcher, vocabulary: &TokEnv) -> Result<(), impl fmt::Display + use<>> {
    let forced = start.deep_clone().compute_ff_bytes();
    let mut matcher = start.deep_clone();
    let mut walked = matcher.consume_tokens(&vocabulary::tokens_of(vocabulary.tok_trie(), &forced));
    if walked.is_ok() && !matcher.is_stopped() {
        walked = matcher.compute_mask().map(drop);
    }
    walked
}

/// The specification in the grammar library's terms, and what was dropped from it.
fn lower(spec: &GrammarSpec, special: &[Special]) -> Result<(TopLevelGrammar, Vec<String>), GrammarError> {
    let grammar = match &spec.kind {
        GrammarKind::Json(schema) => {
            let (schema, dropped) = schema_for_library(schema, spec.lenient, &spec.whitespace)?;
            return Ok((TopLevelGrammar::from_json_schema(schema), dropped));
        }
        GrammarKind::Parts(part) => {
            let (lark, dropped) = part::to_lark(part, special, &spec.whitespace)?;
            return Ok((TopLevelGrammar::from_lark(lark), dropped));
        }
        GrammarKind::Regex(regex) => TopLevelGrammar::from_regex(regex),
        GrammarKind::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
            TopLevelGrammar::from_regex(&texts.join("|"))
        }
        GrammarKind::Lark(lark) => {
            let translated = if gbnf::is_gbnf(lark) { gbnf::to_lark(lark)? } else { lark.clone() };
            TopLevelGrammar::from_lark(translated)
        }
    };
    Ok((grammar, Vec::new()))
}

/// A schema as the grammar library takes it, and what was dropped from it.
pub(crate) fn schema_for_library(
    schema: &str,
    lenient: bool,
    whitespace: &Whitespace,
) -> Result<(Value, Vec<String>), GrammarError> {
    let parsed = serde_json::from_str(schema);
    let mut schema: Value = parsed.map_err(|error| GrammarError::new(format!("not valid JSON: {error}")))?;
    let dropped = schema::check(&mut schema, lenient)?;
    if schema == Value::Bool(true) {
        schema = Value::Object(serde_json::Map::new());
    }
    let pattern = match whitespace {
        Whitespace::Bounded => Some(BOUNDED_SPACE.to_owned()),
        Whitespace::None => None,
        Whitespace::Pattern(pattern) => Some(pattern.clone()),
    };
    let options = JsonCompileOptions {
        whitespace_flexible: false,
        whitespace_pattern: pattern,
        lenient,
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    Ok((schema, dropped))
}
