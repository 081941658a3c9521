//! A server under test: how to reach it, what its model is called, how its prompts are made.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::answer::Reading;
use crate::args::{LengthArgs, ServerArgs, Words};
use crate::draw::Draw;
use crate::failure::Failure;
use crate::http::Client;
use crate::load::{Job, Outcome, Target, run};
use crate::progress::Progress;
use crate::prompt::{Letters, Maker, Part, Prompt};

/// Letters of the two probes.
const PROBES: [u32; 2] = [16, 64];

/// A server that can be sent requests.
#[derive(Debug)]
pub struct Session {
    client: Arc<Client>,
    /// Name of the model.
    pub model: String,
    extra: Map<String, Value>,
    path: Option<String>,
    server_pid: Option<u32>,
}

impl Session {
    /// Finds the server, and the name of its model if it was not given.
    pub async fn open(args: &ServerArgs) -> Result<Self, String> {
        let key = args.api_key.clone().or_else(|| std::env::var("OPENAI_API_KEY").ok());
        let key = key.map(|key| ("authorization".to_owned(), format!("Bearer {key}")));
        let headers: Vec<_> = args.header.iter().cloned().chain(key).collect();
        let client = Arc::new(Client::new(&args.url, &headers, args.timeout, &args.trust).await?);
        let model = match &args.model {
            Some(model) => model.clone(),
            None => first_model(&client).await?,
        };
        Ok(Self {
            client,
            model,
            extra: args.extra_body.clone(),
            path: args.path.clone(),
            server_pid: args.server_pid,
        })
    }

    /// What the server answers to a GET, as JSON.
    pub async fn get(&self, path: &str) -> Result<Value, String> {
        let refusal = |why: String| format!("cannot ask the server for {path}: {why}");
        let exchange = self.client.get(path).await.map_err(|failure| refusal(failure.to_string()))?;
        serde_json::from_slice(&exchange.body).map_err(|error| refusal(error.to_string()))
    }

    /// The members of every request: the model, then `fixed`, then what the user added.
    pub fn members(&self, fixed: Value) -> Map<String, Value> {
        let mut members = Map::from_iter([("model".to_owned(), self.model.as_str().into())]);
        if let Value::Object(fixed) = fixed {
            members.extend(fixed);
        }
        members.extend(self.extra.clone());
        members
    }

    /// Sends a run to `path`, or to the one that the user gave.
    pub async fn run(
        &self,
        path: &str,
        reading: Reading,
        max_concurrency: Option<usize>,
        jobs: Vec<Job>,
    ) -> Result<Outcome, String> {
        let path = self.path.as_deref().unwrap_or(path);
        let progress = Progress::on_terminal(jobs.len());
        let target = Target { path, reading, max_concurrency, server_pid: self.server_pid };
        run(&self.client, target, jobs, progress).await
    }

    /// Sends requests that do not count. If one fails, there is no use in going on.
    pub async fn warm_up(
        &self,
        path: &str,
        reading: Reading,
        max_concurrency: Option<usize>,
        jobs: Vec<Job>,
    ) -> Result<(), String> {
        let path = self.path.as_deref().unwrap_or(path);
        let target = Target { path, reading, max_concurrency, server_pid: None };
        let outcome = run(&self.client, target, jobs, None).await?;
        match outcome.failures.values().next() {
            Some(failed) => Err(format!("the server fails before the run: {}", failed.first)),
            None => Ok(()),
        }
    }

    /// What makes the prompts. `probe` is a request, without a stream, that asks for as little as possible.
    pub async fn maker(
        &self,
        args: &LengthArgs,
        words: Words,
        path: &str,
        probe: impl Fn(&Prompt) -> Vec<u8>,
    ) -> Result<Maker, String> {
        if words == Words::Ids {
            return Ok(Maker::Ids(args.token_ids.clone()));
        }
        let unit = Maker::Letters(Letters { tokens_per_letter: 1.0, added: 0.0 });
        let mut draw = Draw::new(args.seed);
        let mut counts = [0; 2];
        for (count, letters) in counts.iter_mut().zip(PROBES) {
            let prompt = unit.make(&[Part { tokens: letters, seed: draw.bits() }]);
            *count = self.count(path, &probe(&prompt)).await?;
        }
        Ok(Maker::Letters(Letters::measured((PROBES[0], counts[0]), (PROBES[1], counts[1]))?))
    }

    /// The server's count of a request's prompt tokens.
    async fn count(&self, path: &str, body: &[u8]) -> Result<u64, String> {
        let path = self.path.as_deref().unwrap_or(path);
        let exchange = self.client.post(path, body, true).await;
        let exchange = exchange.map_err(|failure| format!("the server fails before the run: {failure}"))?;
        let answer: Value = serde_json::from_slice(&exchange.body).unwrap_or_default();
        answer["usage"]["prompt_tokens"].as_u64().ok_or_else(|| {
            "the server does not count prompt tokens, so letters cannot make a length: use --words ids"
                .to_owned()
        })
    }
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

async fn first_model(client: &Client) -> Result<String, String> {
    let refusal = |why: String| format!("cannot ask the server for its models (--model names one): {why}");
    let exchange = client.get("/v1/models").await.map_err(|failure: Failure| refusal(failure.to_string()))?;
    let models: Models =
        serde_json::from_slice(&exchange.body).map_err(|error| refusal(error.to_string()))?;
    let first = models.data.into_iter().next().ok_or_else(|| refusal("it lists none".to_owned()))?;
    Ok(first.id)
}
