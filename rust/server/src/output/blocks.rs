//! A message as a sequence of blocks, for the dialects whose answers are made of them.
//!
//! Invariants, by construction: at most one block is open; a block opens once, grows, and closes once, with everything
//! that it grew by; indexes count up from 0.

use frizzen_text::parse::Delta;

/// What a block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What the model thinks.
    Reasoning,
    /// Its answer.
    Text,
    /// A call.
    Call {
        /// Its id.
        id: String,
        /// The function.
        name: String,
    },
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What it holds.
    pub kind: Kind,
    /// All of it so far; the arguments of a call, as JSON text.
    pub text: String,
    /// Nothing of it is missing.
    pub complete: bool,
}

/// What happens to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// It begins, empty.
    Open,
    /// It grows by this, never empty.
    Grow(&'a str),
    /// It has ended.
    Close,
}

/// Takes every step, with the index of its block.
pub type Emit<'a> = &'a mut dyn FnMut(usize, &Block, Step<'_>);

/// The blocks of one message.
#[derive(Debug, Default)]
pub struct Blocks {
    blocks: Vec<Block>,
    open: bool,
}

impl Blocks {
    /// The next part of the message.
    pub fn push(&mut self, part: Delta, emit: Emit<'_>) {
        match part {
            Delta::Reasoning(text) => self.grow(Kind::Reasoning, &text, emit),
            Delta::Content(text) => self.grow(Kind::Text, &text, emit),
            Delta::CallStart { id, name, .. } => self.begin(Kind::Call { id, name }, emit),
            Delta::CallArguments { text, .. } => self.extend(&text, emit),
            Delta::CallEnd { complete, .. } => self.close(complete, emit),
        }
    }

    /// The message has ended; `complete` if by itself.
    pub fn end(&mut self, complete: bool, emit: Emit<'_>) {
        self.close(complete, emit);
    }

    /// All blocks, the open one included.
    pub fn all(&self) -> &[Block] {
        &self.blocks
    }

    /// The text of all blocks of reasoning.
    pub fn reasoning(&self) -> String {
        let reasoning = self.blocks.iter().filter(|block| block.kind == Kind::Reasoning);
        reasoning.map(|block| block.text.as_str()).collect()
    }

    fn grow(&mut self, kind: Kind, text: &str, emit: Emit<'_>) {
        if text.is_empty() {
            return;
        }
        let continues = self.open && self.blocks.last().is_some_and(|block| block.kind == kind);
        if !continues {
            self.begin(kind, emit);
        }
        self.extend(text, emit);
    }

    fn begin(&mut self, kind: Kind, emit: Emit<'_>) {
        // What is followed by something else was complete.
        self.close(true, emit);
        self.blocks.push(Block { kind, text: String::new(), complete: false });
        self.open = true;
        self.with_last(emit, Step::Open);
    }

    fn extend(&mut self, text: &str, emit: Emit<'_>) {
        if let Some(block) = self.blocks.last_mut().filter(|_| self.open) {
            block.text.push_str(text);
            self.with_last(emit, Step::Grow(text));
        }
    }

    fn close(&mut self, complete: bool, emit: Emit<'_>) {
        if std::mem::take(&mut self.open) {
            if let Some(block) = self.blocks.last_mut() {
                block.complete = complete;
            }
            self.with_last(emit, Step::Close);
        }
    }

    fn with_last(&self, emit: Emit<'_>, step: Step<'_>) {
        if let Some((index, block)) = self.blocks.iter().enumerate().next_back() {
            emit(index, block, step);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part() -> impl Strategy<Value = Delta> {
        prop_oneof![
            "[a-c]{0,3}".prop_map(Delta::Reasoning),
            "[a-c]{0,3}".prop_map(Delta::Content),
            Just(Delta::CallStart { index: 0, id: "i".to_owned(), name: "f".to_owned() }),
            "[a-c]{1,3}".prop_map(|text| Delta::CallArguments { index: 0, text }),
            any::<bool>().prop_map(|complete| Delta::CallEnd { index: 0, complete }),
        ]
    }

    proptest! {
        #[test]
        fn blocks_open_grow_and_close_one_after_the_other(parts in prop::collection::vec(part(), 0..40)) {
            let mut open: Option<usize> = None;
            let mut seen: Vec<String> = Vec::new();
            let mut step = |index: usize, block: &Block, step: Step<'_>| match step {
                Step::Open => {
                    assert_eq!((open, index), (None, seen.len()));
                    assert_eq!(block.text, "");
                    seen.push(String::new());
                    open = Some(index);
                }
                Step::Grow(text) => {
                    assert_eq!(open, Some(index));
                    assert_ne!(text, "");
                    seen[index].push_str(text);
                }
                Step::Close => {
                    assert_eq!(open.take(), Some(index));
                    assert_eq!(block.text, seen[index]);
                }
            };
            let mut blocks = Blocks::default();
            for part in parts {
                blocks.push(part, &mut step);
            }
            blocks.end(false, &mut step);
            blocks.end(false, &mut step);
            assert_eq!(open, None);
            assert!(blocks.all().iter().map(|block| &block.text).eq(&seen));
        }
    }
}
