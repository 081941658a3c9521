//! What every replica was asked, and somebody waits for.
//!
//! A question is answered when each of those that were asked has answered or is lost. A replica answers questions of one
//! kind in their order, so that an answer belongs to the oldest one that waits for it.

use std::sync::mpsc::Sender;

use rustc_hash::FxHashSet;
use serde_json::{Value, json};

use crate::handle::ControlAnswer;

/// A question, with whoever waits for the answer.
pub(super) enum Question {
    ResetPrefixCache(Sender<bool>),
    Pause(Sender<()>),
    /// With the answers so far, each `{"engine": rank, "answer" or "error": ...}`.
    Control(Sender<ControlAnswer>, Vec<Value>),
}

struct Asked {
    question: Question,
    /// Replicas that have not answered.
    missing: FxHashSet<u32>,
    /// All that have answered said yes.
    done: bool,
}

/// The questions that are open, oldest first.
#[derive(Default)]
pub(super) struct Questions(Vec<Asked>);

impl Questions {
    /// These replicas have been asked.
    pub fn ask(&mut self, question: Question, replicas: impl IntoIterator<Item = u32>) {
        self.0.push(Asked { question, missing: replicas.into_iter().collect(), done: true });
        self.settle();
    }

    /// A replica has answered the oldest question of a kind that waits for it; false if none does.
    pub fn answered(&mut self, rank: u32, done: bool, kind: impl Fn(&Question) -> bool) -> bool {
        let waiting = |asked: &&mut Asked| kind(&asked.question) && asked.missing.contains(&rank);
        let Some(asked) = self.0.iter_mut().find(waiting) else { return false };
        asked.missing.remove(&rank);
        asked.done &= done;
        self.settle();
        true
    }

    /// A replica's worker has answered.
    pub fn worker_answered(&mut self, rank: u32, answer: ControlAnswer) {
        let mut entry = json!({"engine": rank});
        match answer.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string())) {
            Ok::<Value, _>(value) => entry["answer"] = value,
            Err(error) => entry["error"] = error.into(),
        }
        let waiting = |asked: &&mut Asked| {
            matches!(asked.question, Question::Control(..)) && asked.missing.contains(&rank)
        };
        if let Some(Asked { question: Question::Control(_, answers), .. }) = self.0.iter_mut().find(waiting) {
            answers.push(entry);
        }
        self.answered(rank, true, |question| matches!(question, Question::Control(..)));
    }

    /// Answers whoever waits for questions that nobody has to answer any more.
    fn settle(&mut self) {
        self.0.retain_mut(|asked| {
            if asked.missing.is_empty() {
                // Nobody waits for the answer any more if this fails.
                let _ = match &mut asked.question {
                    Question::ResetPrefixCache(answer) => answer.send(asked.done).is_ok(),
                    Question::Pause(answer) => answer.send(()).is_ok(),
                    Question::Control(answer, answers) => {
                        answers.sort_by_key(|entry| entry["engine"].as_u64());
                        answer.send(Ok(Value::from(std::mem::take(answers)).to_string())).is_ok()
                    }
                };
            }
            !asked.missing.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_question_waits_for_all_and_not_for_those_that_are_lost() {
        let mut questions = Questions::default();
        let (answer, answered) = channel();
        questions.ask(Question::Control(answer, Vec::new()), [0, 1, 2]);
        questions.worker_answered(2, Ok("7".to_owned()));
        questions.worker_answered(0, Err("no such question".to_owned()));
        assert!(answered.try_recv().is_err());
        assert!(questions.answered(1, true, |_| true), "it is lost");
        let told: Value = serde_json::from_str(&answered.recv().unwrap().unwrap()).unwrap();
        assert_eq!(told, json!([{"engine": 0, "error": "no such question"}, {"engine": 2, "answer": 7}]));
        assert!(!questions.answered(1, true, |_| true));
    }

    #[test]
    fn one_no_is_no_and_nobody_to_ask_is_yes() {
        let mut questions = Questions::default();
        let (answer, answered) = channel();
        questions.ask(Question::ResetPrefixCache(answer.clone()), [0, 1]);
        questions.answered(0, false, |_| true);
        questions.answered(1, true, |_| true);
        assert!(!answered.recv().unwrap());
        questions.ask(Question::ResetPrefixCache(answer), []);
        assert!(answered.recv().unwrap());
    }
}
