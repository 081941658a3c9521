//! Grammars for constrained output: a specification becomes a compiled grammar, and that becomes masks over tokens.
//!
//! * [`spec`]: what a request may ask for: JSON schema, regular expression, choice, Lark.
//! * [`gbnf`]: EBNF translated to Lark's notation.
//! * [`part`]: texts of marked parts; [`tools`] makes one of tool calls, [`structural`] of structural tags.
//! * [`schema`]: the check of a JSON schema that names what cannot be enforced, and where.
//! * [`compiler`]: [`GrammarCompiler`], one per model: compiles under limits on size and time, and keeps the results.
//! * [`grammar`]: the compiled [`Grammar`] and its [`Matcher`].
//!
//! Invariants: a grammar that compiles is enforced on every token, or, if it was compiled leniently, says what was
//! dropped; nothing here stalls or ends the process, whatever the specification; the same specification and the same
//! tokens give the same masks, whatever else runs.

pub mod compiler;
pub mod gbnf;
pub mod grammar;
pub mod part;
pub mod schema;
pub mod spec;
pub mod structural;
pub mod tools;
mod vocabulary;

pub use compiler::{GrammarCompiler, GrammarLimits};
pub use grammar::{Grammar, Matcher};
pub use part::Part;
pub use spec::{GrammarError, GrammarKind, GrammarSpec, Whitespace};
