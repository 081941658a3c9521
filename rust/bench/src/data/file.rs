//! Recorded conversations: a JSON array in ShareGPT's form, or with OpenAI's `messages`.

use serde::Deserialize;

use crate::data::Query;
use crate::draw::Draw;
use crate::prompt::Prompt;

/// The first question of each conversation and the length of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationFile {
    pairs: Vec<(String, u32)>,
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "messages")]
    conversations: Vec<Turn>,
}

#[derive(Deserialize)]
struct Turn {
    #[serde(alias = "role")]
    from: String,
    #[serde(alias = "content")]
    value: String,
}

impl ConversationFile {
    /// Reads the file's text. Conversations that do not have a question with an answer are left out.
    pub fn parse(text: &str) -> Result<Self, String> {
        let conversations: Vec<Conversation> =
            serde_json::from_str(text).map_err(|error| format!("not a list of conversations: {error}"))?;
        let pairs: Vec<_> = conversations.into_iter().filter_map(first_pair).collect();
        if pairs.is_empty() {
            return Err("no conversation has a question with an answer".to_owned());
        }
        Ok(Self { pairs })
    }

    /// `count` requests in random order, from the start again if there are not that many conversations. Answers are as
    /// long as the recorded ones (a token is about four bytes), or `output` tokens.
    pub fn queries(&self, count: usize, output: Option<u32>, draw: &mut Draw) -> Vec<Query> {
        let mut order: Vec<usize> = (0..self.pairs.len()).collect();
        draw.shuffle(&mut order);
        let queries = order.iter().cycle().take(count).map(|index| {
            let (question, tokens) = &self.pairs[*index];
            Query {
                prompt: Prompt::Text(question.clone()),
                output_tokens: output.unwrap_or(*tokens),
                due: None,
            }
        });
        queries.collect()
    }
}

fn first_pair(conversation: Conversation) -> Option<(String, u32)> {
    let mut turns = conversation.conversations.into_iter();
    let question = turns.find(|turn| matches!(&*turn.from, "human" | "user"))?;
    let answer = turns.next().filter(|turn| matches!(&*turn.from, "gpt" | "assistant"))?;
    let tokens = Prompt::Text(answer.value).tokens() as u32;
    (tokens > 0 && !question.value.is_empty()).then_some((question.value, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"[
        {"id": "a", "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "one?"},
                                      {"from": "gpt", "value": "12345678"}, {"from": "human", "value": "more?"}]},
        {"id": "b", "conversations": [{"from": "human", "value": "unanswered"}]},
        {"id": "c", "messages": [{"role": "user", "content": "two?"}, {"role": "assistant", "content": "1"}]},
        {"id": "d", "conversations": []}
    ]"#;

    #[test]
    fn the_first_answered_question_counts_in_either_form() {
        let file = ConversationFile::parse(FILE).unwrap();
        assert_eq!(file.pairs, [("one?".to_owned(), 2), ("two?".to_owned(), 1)]);
        let queries = file.queries(5, None, &mut Draw::new(1));
        assert_eq!(queries.len(), 5);
        assert_eq!(queries[0], queries[2]);
        assert!(file.queries(2, Some(7), &mut Draw::new(1)).iter().all(|query| query.output_tokens == 7));
    }

    #[test]
    fn a_file_without_a_pair_is_refused() {
        assert!(ConversationFile::parse("{}").unwrap_err().starts_with("not a list"));
        assert!(ConversationFile::parse("[]").unwrap_err().starts_with("no conversation"));
    }
}
