//! Requests whose result is a vector: an embedding, or a number per class.
//!
//! A worker returns what the model computes, never normalised and never activated; what a request wants beyond that
//! is arithmetic on a few numbers and is done here, so that the worker knows no options and the server and the
//! library cannot disagree.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// What a pooling request says to the model besides its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// Index of the first token of the second text, where the prompt is a pair of texts and the model tells them apart.
    pub second_start: Option<u32>,
    /// The result is a vector of every token of the prompt, one after the other.
    pub per_token: bool,
}

/// What the vectors of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolingTask {
    /// A point in space: texts that mean the same lie close together.
    Embed,
    /// A number per class.
    Classify,
}

/// From a classifier's numbers to probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// The numbers themselves: the model was trained for a regression.
    Identity,
    /// Each class for itself.
    Sigmoid,
    /// One of the classes.
    Softmax,
}

/// What a model that pools returns, as its worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolingInfo {
    /// What its vectors are.
    pub task: PoolingTask,
    /// Numbers of a vector.
    pub size: u32,
    /// Embeddings have length 1 unless a request says otherwise.
    #[serde(default)]
    pub normalize: bool,
    /// Lengths to which an embedding may be cut, ascending; an empty list is any, none is not at all.
    #[serde(default)]
    pub dimensions: Option<Vec<u32>>,
    /// How probabilities are made.
    pub activation: Activation,
    /// Names of the classes, in order.
    #[serde(default)]
    pub labels: Vec<String>,
    /// The vector depends on the hidden states of all tokens, so that none may come from the prefix cache.
    pub every_token: bool,
    /// Every token attends to every other one, so that a prompt must be computed in one step.
    pub whole_prompts: bool,
    /// Its result is a vector of every token, unless a request says otherwise; texts are compared by their tokens.
    #[serde(default)]
    pub per_token: bool,
}

impl PoolingInfo {
    /// True if the model judges a pair of texts by one number.
    pub const fn is_cross_encoder(&self) -> bool {
        matches!(self.task, PoolingTask::Classify) && self.size == 1 && !self.per_token
    }

    /// The tasks that the model has, in words.
    pub const fn tasks(&self) -> &'static str {
        match self.task {
            PoolingTask::Embed if self.per_token => "token_embed (/v1/embeddings, /pooling, /score, /rerank)",
            PoolingTask::Classify if self.per_token => "token_classify (/pooling)",
            PoolingTask::Embed => "embed (/v1/embeddings, /pooling, /score, /rerank)",
            PoolingTask::Classify if self.size == 1 => "classify (/classify, /pooling, /score, /rerank)",
            PoolingTask::Classify => "classify (/classify, /pooling)",
        }
    }

    /// Checks the length to which an embedding is to be cut.
    ///
    /// # Errors
    /// `Invalid`, naming the lengths that the model was trained for.
    pub fn check_dimensions(&self, asked: u32) -> Result<()> {
        let problem = match &self.dimensions {
            None => {
                format!(
                    "the model was not trained to have its embeddings cut; they have {} numbers",
                    self.size
                )
            }
            Some(lengths) if !lengths.is_empty() && !lengths.contains(&asked) => {
                format!("dimensions must be one of {lengths:?}, got {asked}")
            }
            Some(_) if !(1..=self.size).contains(&asked) => {
                format!("dimensions must be from 1 to {}, got {asked}", self.size)
            }
            Some(_) => return Ok(()),
        };
        Err(Error::invalid("dimensions", problem))
    }

    /// The embedding that a request wants: cut first, so that what is left has length 1.
    pub fn embedding(
        &self,
        mut vector: Vec<f32>,
        dimensions: Option<u32>,
        normalize: Option<bool>,
    ) -> Vec<f32> {
        if let Some(dimensions) = dimensions {
            vector.truncate(dimensions as usize);
        }
        if normalize.unwrap_or(self.normalize) {
            normalise(&mut vector);
        }
        vector
    }

    /// The classifier's numbers as probabilities, unless the request wants them raw.
    pub fn probabilities(&self, mut logits: Vec<f32>, activate: Option<bool>) -> Vec<f32> {
        match self.activation {
            Activation::Identity => {}
            _ if activate == Some(false) => {}
            Activation::Sigmoid => {
                for x in &mut logits {
                    *x = sigmoid(*x);
                }
            }
            Activation::Softmax => softmax(&mut logits),
        }
        logits
    }

    /// What `/pooling` shows: the embedding or the probabilities; of several vectors, one after the other, those of each.
    pub fn finish(&self, vectors: Vec<f32>, dimensions: Option<u32>, activate: Option<bool>) -> Vec<f32> {
        let one = |vector: Vec<f32>| match self.task {
            PoolingTask::Embed => self.embedding(vector, dimensions, activate),
            PoolingTask::Classify => self.probabilities(vector, activate),
        };
        let size = self.size as usize;
        if vectors.len() <= size {
            return one(vectors);
        }
        vectors.chunks(size).flat_map(|vector| one(vector.to_vec())).collect()
    }
}

/// Scales a vector to length 1; one of zeros stays as it is. Summed in double precision.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        for x in vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

fn softmax(logits: &mut [f32]) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|x| f64::from(x - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    for (x, weight) in logits.iter_mut().zip(&weights) {
        *x = (weight / sum) as f32;
    }
}

/// How well a document fits a query, each a normalised vector of `size` per token: for each token of the query the dot
/// product with the token of the document that fits it best, added up (`ColBERT`, arXiv 2004.12832).
pub fn late_interaction(query: &[f32], document: &[f32], size: usize) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let best = |token: &[f32]| {
        let fits = document.chunks(size).map(|other| dot(token, other));
        fits.fold(f64::NEG_INFINITY, f64::max)
    };
    query.chunks(size).map(best).sum::<f64>() as f32
}

/// The cosine of the angle between two embeddings; 0 if one of them has no direction.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { (dot(a, b) / lengths) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(task: PoolingTask, dimensions: Option<Vec<u32>>) -> PoolingInfo {
        PoolingInfo {
            task,
            size: 4,
            normalize: true,
            dimensions,
            activation: Activation::Softmax,
            labels: Vec::new(),
            every_token: false,
            whole_prompts: false,
            per_token: false,
        }
    }

    #[test]
    fn an_embedding_is_cut_before_it_is_normalised() {
        let info = info(PoolingTask::Embed, Some(vec![]));
        let cut = info.embedding(vec![3.0, 4.0, 12.0, 84.0], Some(2), None);
        assert_eq!(cut, [0.6, 0.8]);
        assert_eq!(info.embedding(vec![3.0, 4.0], None, Some(false)), [3.0, 4.0]);
        assert_eq!(info.embedding(vec![0.0, 0.0], None, None), [0.0, 0.0]);
    }

    #[test]
    fn dimensions_are_those_that_the_model_was_trained_for() {
        let refusal = |lengths, asked| {
            info(PoolingTask::Embed, lengths).check_dimensions(asked).err().map(|error| error.to_string())
        };
        assert_eq!(refusal(Some(vec![]), 4), None);
        assert_eq!(refusal(Some(vec![2, 4]), 2), None);
        assert_eq!(refusal(Some(vec![]), 5).unwrap(), "dimensions must be from 1 to 4, got 5");
        assert_eq!(refusal(Some(vec![2, 4]), 3).unwrap(), "dimensions must be one of [2, 4], got 3");
        assert!(refusal(None, 4).unwrap().contains("not trained"));
    }

    #[test]
    fn probabilities_are_finite_for_any_logits() {
        let info = info(PoolingTask::Classify, None);
        assert_eq!(info.probabilities(vec![1e30, 0.0], None), [1.0, 0.0]);
        assert_eq!(info.probabilities(vec![0.0, 0.0], None), [0.5, 0.5]);
        assert_eq!(info.probabilities(vec![7.0, 1.0], Some(false)), [7.0, 1.0]);
        assert_eq!((sigmoid(-1e30), sigmoid(1e30), sigmoid(0.0)), (0.0, 1.0, 0.5));
    }

    #[test]
    fn vectors_of_tokens_are_normalised_each_and_compared_by_their_best_match() {
        let info = info(PoolingTask::Embed, None);
        let two = info.finish(vec![3.0, 0.0, 4.0, 0.0, 0.0, 2.0, 0.0, 0.0], None, None);
        assert_eq!(two, [0.6, 0.0, 0.8, 0.0, 0.0, 1.0, 0.0, 0.0]);
        let axis = [0.0, 1.0, 0.0, 0.0];
        assert_eq!(late_interaction(&axis, &two, 4), 1.0);
        assert_eq!(late_interaction(&two, &axis, 4), 1.0, "the first token of the query fits nothing");
        assert!((late_interaction(&two, &two, 4) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn a_vector_without_direction_is_like_nothing() {
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 0.0]), 0.0);
        assert_eq!(cosine(&[2.0, 0.0], &[5.0, 0.0]), 1.0);
    }
}
