//! Label sets.

use std::fmt::Write;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// The label set of a series.
pub(crate) type Labels = Vec<(&'static str, Label)>;

/// A label value, escaped once for the text formats: the encoder writes values as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label(Arc<str>);

impl Label {
    pub(crate) fn new(value: &str) -> Self {
        Self(value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n").into())
    }
}

impl EncodeLabelValue for Label {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        encoder.write_str(&self.0)
    }
}

pub(crate) fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name, Label::new(value))).collect()
}
