//! The merges in a `tokenizer.json`, which the `tokenizers` crate reads and does not show.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
struct File<'j> {
    #[serde(borrow)]
    model: Model<'j>,
}

#[derive(Deserialize)]
struct Model<'j> {
    #[serde(borrow)]
    merges: Vec<Merge<'j>>,
}

/// Two tokens that become one; in older files one string with a space between them.
pub(super) struct Merge<'j>(Part<'j>, Part<'j>);

#[derive(Deserialize)]
struct Part<'j>(#[serde(borrow)] Cow<'j, str>);

impl Merge<'_> {
    pub(super) fn parts(&self) -> (&str, &str) {
        (&self.0.0, &self.1.0)
    }
}

impl<'de: 'j, 'j> Deserialize<'de> for Merge<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("two tokens, or a string with a space between them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let (left, right) = text.split_once(' ').ok_or_else(|| E::custom("a merge without a space"))?;
        Ok(Merge(Part(Cow::Owned(left.to_owned())), Part(Cow::Owned(right.to_owned()))))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        let (left, right) = text.split_once(' ').ok_or_else(|| E::custom("a merge without a space"))?;
        Ok(Merge(Part(Cow::Borrowed(left)), Part(Cow::Borrowed(right))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut part =
            || sequence.next_element()?.ok_or_else(|| A::Error::custom("a merge of fewer than two tokens"));
        Ok(Merge(part()?, part()?))
    }
}

/// The merges of the model that `json` describes, best first; `None` if it has none.
pub(super) fn merges(json: &[u8]) -> Option<Vec<Merge<'_>>> {
    serde_json::from_slice::<File<'_>>(json).ok().map(|file| file.model.merges)
}
