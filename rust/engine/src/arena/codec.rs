//! Plans into the arena, results out of it.

use bytemuck::Pod;
use frizzen_sched::{Admission, PlannedRow, PositionLogprobs, StepOutput, StepPlan};

use super::{ArenaLayout, S, VERSION, admit_float, admit_int, header, proposed, rule, status};
use crate::worker::WorkerError;

/// One arena's memory with its layout.
#[derive(Debug)]
pub struct Arena<'a> {
    layout: &'a ArenaLayout,
    bytes: &'a mut [u8],
}

fn overflow(name: &str, wanted: usize, capacity: usize) -> WorkerError {
    let message = format!("step arena: section {name} holds {capacity} elements and the step needs {wanted}");
    WorkerError::Fatal { message, detail: String::new() }
}

impl<'a> Arena<'a> {
    /// Wraps the memory.
    ///
    /// # Errors
    /// `Fatal` if it is too small or not aligned to 64 bytes.
    pub fn new(layout: &'a ArenaLayout, bytes: &'a mut [u8]) -> Result<Self, WorkerError> {
        if bytes.len() < layout.bytes() || !(bytes.as_ptr() as usize).is_multiple_of(64) {
            let (got, want) = (bytes.len(), layout.bytes());
            let message = format!("step arena: {got} bytes at this address, {want} aligned to 64 are needed");
            return Err(WorkerError::Fatal { message, detail: String::new() });
        }
        Ok(Self { layout, bytes })
    }

    fn get<T: Pod>(&self, section: S) -> &[T] {
        bytemuck::cast_slice(&self.bytes[self.layout.section(section).bytes()])
    }

    fn get_mut<T: Pod>(&mut self, section: S) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.bytes[self.layout.section(section).bytes()])
    }

    /// Writes `values` to the front of a section; returns how many there were.
    fn write<T: Pod>(
        &mut self,
        section: S,
        values: impl IntoIterator<Item = T>,
    ) -> Result<usize, WorkerError> {
        let name = self.layout.section(section).name;
        let target = self.get_mut::<T>(section);
        let mut count = 0;
        for value in values {
            let Some(slot) = target.get_mut(count) else {
                return Err(overflow(name, count + 1, target.len()));
            };
            *slot = value;
            count += 1;
        }
        Ok(count)
    }

    /// Lays a plan out.
    ///
    /// # Errors
    /// `Fatal` if the plan exceeds a limit of the layout: a defect of the scheduler, never of a request.
    pub fn encode(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.encode_tokens(plan)?;
        self.write(S::rows, plan.rows.iter().map(|row| row.row.0 as i32))?;
        self.write(S::seq_lens, plan.rows.iter().map(|row| (row.start + row.num_tokens) as i32))?;
        self.write(S::num_drafts, plan.rows.iter().map(|row| row.num_drafts as i32))?;
        self.write(S::next_tokens, plan.rows.iter().map(|row| row.next_token))?;
        let mut end = 0;
        let ends = plan.rows.iter().map(|row| {
            end += row.num_tokens as i32;
            end
        });
        self.write(S::query_start, std::iter::once(0).chain(ends))?;
        self.write(S::block_rows, plan.blocks.iter().map(|delta| delta.row.0 as i32))?;
        self.write(S::block_columns, plan.blocks.iter().map(|delta| delta.column as i32))?;
        self.write(S::block_ids, plan.blocks.iter().map(|delta| delta.block.0 as i32))?;
        self.encode_admissions(&plan.admissions)?;
        let words = self.get_mut::<i64>(S::header);
        words[header::VERSION] = VERSION;
        words[header::STEP] = plan.step.0 as i64;
        words[header::NUM_ROWS] = plan.rows.len() as i64;
        words[header::NUM_SINGLE] = plan.num_single as i64;
        words[header::NUM_TOKENS] = plan.num_tokens() as i64;
        words[header::NUM_SAMPLES] = plan.sample_tokens.len() as i64;
        words[header::NUM_PROMPT] = plan.prompt_positions.len() as i64;
        words[header::NUM_BLOCKS] = plan.blocks.len() as i64;
        words[header::NUM_ADMITS] = plan.admissions.len() as i64;
        words[header::MAX_QUERY] = plan.rows.iter().map(|row| i64::from(row.num_tokens)).max().unwrap_or(0);
        words[header::MAX_CONTEXT] = plan.max_context() as i64;
        words[header::NUM_MASKS] = plan.mask_rows.len() as i64;
        words[header::PROPOSE] = i64::from(plan.propose);
        words[header::IRREGULAR] = 0;
        words[header::TOKEN_VECTORS] = i64::from(plan.wants_token_vectors());
        Ok(())
    }

    /// Writes the masks of the plan that was laid out last, once they are filled.
    ///
    /// # Errors
    /// `Fatal` if they are not one per mask row.
    pub fn encode_masks(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        let words = self.layout.limits().vocab_size.div_ceil(32);
        if plan.masks.len() != plan.mask_rows.len() * words {
            return Err(overflow("masks", plan.masks.len(), plan.mask_rows.len() * words));
        }
        let target = self.get_mut::<u32>(S::masks);
        target[..plan.masks.len()].copy_from_slice(&plan.masks);
        Ok(())
    }

    fn encode_tokens(&mut self, plan: &StepPlan) -> Result<(), WorkerError> {
        self.write(S::input_ids, plan.input_ids.iter().copied())?;
        self.write(S::positions, plan.positions.iter().copied())?;
        self.write(S::slots, plan.slots.iter().copied())?;
        self.write(S::sample_tokens, plan.sample_tokens.iter().copied())?;
        self.write(S::sample_rows, plan.sample_rows.iter().copied())?;
        self.write(S::uniforms, plan.uniforms.iter().copied())?;
        self.write(S::mask_rows, plan.mask_rows.iter().map(|row| *row as i32))?;
        let positions = &plan.prompt_positions;
        self.write(S::prompt_tokens, positions.iter().map(|position| position.token as i32))?;
        self.write(S::prompt_rows, positions.iter().map(|position| position.row as i32))?;
        self.write(S::prompt_targets, positions.iter().map(|position| position.target as i32))?;
        Ok(())
    }

    fn encode_admissions(&mut self, admissions: &[Admission]) -> Result<(), WorkerError> {
        self.write(S::admit_rows, admissions.iter().map(|admission| admission.row.0 as i32))?;
        self.write(S::admit_seeds, admissions.iter().map(|admission| admission.seed as i64))?;
        self.write(S::admit_ints, admissions.iter().flat_map(admit_ints))?;
        self.write(S::admit_floats, admissions.iter().flat_map(admit_floats))?;
        let rules = || admissions.iter().flat_map(rules_of);
        self.write(S::rule_kinds, rules().map(|(kind, _, _)| kind))?;
        self.write(S::rule_tokens, rules().map(|(_, token, _)| token))?;
        self.write(S::rule_values, rules().map(|(_, _, value)| value))?;
        self.write(S::history, admissions.iter().flat_map(history_of))?;
        Ok(())
    }

    /// Reads the results of the step that `plan` described.
    ///
    /// # Errors
    /// `Fatal` if a result is out of range: a count over the drafts, or a token outside the vocabulary.
    pub fn decode(
        &self,
        plan: &StepPlan,
        vocab_size: u32,
        output: &mut StepOutput,
    ) -> Result<(), WorkerError> {
        let width = self.layout.limits().max_drafts + 1;
        let statuses = self.get::<i32>(S::row_status);
        let counts = self.get::<i32>(S::num_sampled);
        let sampled = self.get::<i32>(S::sampled);
        let size = self.layout.limits().pooled_size;
        output.pooled_size = size;
        output.irregular = self.get::<i64>(S::header)[header::IRREGULAR] != 0;
        let mut end = 0;
        for (at, row) in plan.rows.iter().enumerate() {
            // Every token of such a step has a vector; not every one was asked for.
            end += row.num_tokens as usize;
            let wanted = (end - row.num_vectors as usize) * size..end * size;
            output.token_vectors.extend_from_slice(&self.get::<f32>(S::token_vectors)[wanted]);
            if row.samples {
                output.pooled.extend_from_slice(&self.get::<f32>(S::pooled)[at * size..(at + 1) * size]);
            }
            if statuses[at] != status::OK {
                output.failed.push((row.row, failure_of(plan, at).to_owned()));
                output.num_sampled.push(0);
                continue;
            }
            let count = check_count(counts[at], row, size > 0)?;
            output.num_sampled.push(count as u32);
            for token in &sampled[at * width..at * width + count] {
                let known = u32::try_from(*token).ok().filter(|token| *token < vocab_size);
                output.tokens.push(known.ok_or_else(|| {
                    let message =
                        format!("the worker sampled token {token}, the vocabulary has {vocab_size}");
                    WorkerError::Fatal { message, detail: String::new() }
                })?);
            }
        }
        self.decode_logprobs(plan, output);
        if let Err(reason) = self.decode_proposals(plan, vocab_size, output) {
            output.proposals.clear();
            output.proposals.failed = Some(reason);
        }
        Ok(())
    }

    /// Reads what the worker's drafter proposes; an error is that drafter's failure, never the engine's.
    fn decode_proposals(
        &self,
        plan: &StepPlan,
        vocab_size: u32,
        output: &mut StepOutput,
    ) -> Result<(), String> {
        let width = self.layout.limits().max_drafts;
        let counts = &self.get::<i32>(S::num_proposed)[..plan.rows.len()];
        if counts.contains(&proposed::FAILED) {
            return Err("the drafter failed".to_owned());
        }
        if counts.iter().all(|count| *count == 0) {
            return Ok(());
        }
        let (tokens, chances) = (self.get::<i32>(S::proposed), self.get::<f32>(S::proposed_confidence));
        let most = width.min(plan.propose as usize);
        for (at, count) in counts.iter().enumerate() {
            // A row without a token has nothing that drafts could follow.
            let most = if output.num_sampled[at] == 0 { 0 } else { most };
            let count = usize::try_from(*count).ok().filter(|count| *count <= most).ok_or_else(|| {
                format!("the drafter proposed {count} tokens for a row that was to get at most {most}")
            })?;
            let range = at * width..at * width + count;
            output.proposals.counts.push(count as u32);
            for token in &tokens[range.clone()] {
                let known = u32::try_from(*token).ok().filter(|token| *token < vocab_size);
                output.proposals.tokens.push(known.ok_or_else(|| {
                    format!("the drafter proposed token {token}, the vocabulary has {vocab_size}")
                })?);
            }
            output.proposals.confidences.extend_from_slice(&chances[range]);
        }
        Ok(())
    }

    fn decode_logprobs(&self, plan: &StepPlan, output: &mut StepOutput) {
        let width = self.layout.limits().max_drafts + 1;
        let requests = &plan.logprob_rows;
        if !requests.is_empty() {
            output.logprobs.resize(output.tokens.len(), PositionLogprobs::default());
            let mut first = 0;
            let mut asked = requests.iter().peekable();
            for (at, count) in output.num_sampled.iter().enumerate() {
                let count = *count as usize;
                if let Some(asked) = asked.next_if(|asked| asked.row as usize == at) {
                    for i in 0..count {
                        let from = at * width + i;
                        output.logprobs[first + i] = self.position(
                            from,
                            [asked.best, asked.listed],
                            &mut output.top,
                            [S::logprobs, S::ranks, S::top_tokens, S::top_logprobs],
                        );
                    }
                }
                first += count;
            }
        }
        for (from, position) in plan.prompt_positions.iter().enumerate() {
            let sections =
                [S::prompt_logprobs, S::prompt_ranks, S::prompt_top_tokens, S::prompt_top_logprobs];
            let scored = self.position(from, [position.alternatives, 0], &mut output.top, sections);
            output.prompt_logprobs.push(scored);
        }
    }

    /// Log-probabilities at index `at`: so many of the most likely tokens, then so many listed ones, of which each stands
    /// once. Sections are those of the value, the rank, and the alternatives.
    fn position(
        &self,
        at: usize,
        [best, listed]: [u32; 2],
        top: &mut Vec<(u32, f32)>,
        sections: [S; 4],
    ) -> PositionLogprobs {
        let [logprob, rank, tokens, values] = sections;
        let most = self.layout.limits().max_logprobs;
        let len = ((best + listed) as usize).min(most);
        let range = at * most..at * most + len;
        let top_start = top.len();
        let tokens = self.get::<i32>(tokens)[range.clone()].iter().map(|token| *token as u32);
        let mut all = tokens.zip(self.get::<f32>(values)[range].iter().copied());
        top.extend(all.by_ref().take(best as usize));
        for (token, value) in all {
            if !top[top_start..].iter().any(|(other, _)| *other == token) {
                top.push((token, value));
            }
        }
        PositionLogprobs {
            logprob: self.get::<f32>(logprob)[at],
            rank: self.get::<i32>(rank)[at] as u32,
            top_start: top_start as u32,
            top_len: (top.len() - top_start) as u32,
        }
    }
}

/// Why a row has no token.
fn failure_of(plan: &StepPlan, row: usize) -> &'static str {
    let is_masked = plan.mask_rows.iter().any(|sample| plan.sample_rows[*sample as usize] as usize == row);
    if is_masked {
        "no token is left to this request: its grammar, token rules and bias allow none in common, or its logits are \
         not finite"
    } else {
        "the logits of this request are not finite"
    }
}

fn check_count(count: i32, row: &PlannedRow, pools: bool) -> Result<usize, WorkerError> {
    let samples = row.samples && !pools;
    let most = if samples { row.num_drafts as usize + 1 } else { 0 };
    let least = usize::from(samples);
    usize::try_from(count).ok().filter(|count| (least..=most).contains(count)).ok_or_else(|| {
        let message = format!("the worker returned {count} tokens for a row that can have {least} to {most}");
        WorkerError::Fatal { message, detail: String::new() }
    })
}

fn admit_ints(admission: &Admission) -> [i32; admit_int::LEN] {
    let params = &admission.request.params;
    let alternatives = |asked: Option<u32>| asked.map_or(-1, |asked| asked as i32);
    let mut ints = [0; admit_int::LEN];
    ints[admit_int::TOP_K] = params.top_k.min(i32::MAX as u32) as i32;
    ints[admit_int::LOGPROBS] = alternatives(params.logprobs);
    ints[admit_int::PROMPT_LOGPROBS] = alternatives(params.prompt_logprobs);
    ints[admit_int::PROMPT_LEN] = admission.request.prompt.len() as i32;
    ints[admit_int::MIN_TOKENS] = params.min_tokens.min(i32::MAX as u32) as i32;
    ints[admit_int::NUM_RULES] = admission.num_rules() as i32;
    let second = admission.request.pooling.and_then(|pooling| pooling.second_start);
    ints[admit_int::SECOND_START] = second.map_or(0, |start| start as i32);
    ints[admit_int::NUM_HISTORY] = admission.num_history() as i32;
    ints
}

fn admit_floats(admission: &Admission) -> [f32; admit_float::LEN] {
    let params = &admission.request.params;
    let mut floats = [0.0; admit_float::LEN];
    floats[admit_float::TEMPERATURE] = params.temperature;
    floats[admit_float::TOP_P] = params.top_p;
    floats[admit_float::MIN_P] = params.min_p;
    floats[admit_float::PRESENCE] = params.presence_penalty;
    floats[admit_float::FREQUENCY] = params.frequency_penalty;
    floats[admit_float::REPETITION] = params.repetition_penalty;
    floats
}

fn rules_of(admission: &Admission) -> impl Iterator<Item = (i32, i32, f32)> {
    let params = &admission.request.params;
    let biases = params.logit_bias.iter().map(|(token, bias)| (rule::BIAS, *token as i32, *bias));
    let allowed = params.allowed_token_ids.iter().flatten().map(|token| (rule::ALLOW, *token as i32, 0.0));
    let shielded = params.min_tokens > 0;
    let suppressed = admission.suppressed.iter().filter(move |_| shielded);
    let scored = params.logprob_token_ids.iter().map(|token| (rule::SCORE, *token as i32, 0.0));
    biases.chain(allowed).chain(suppressed.map(|token| (rule::SUPPRESS, *token as i32, 0.0))).chain(scored)
}

fn history_of(admission: &Admission) -> impl Iterator<Item = i32> {
    let tokens = admission.request.prompt.iter().chain(&admission.outputs);
    tokens.take(admission.num_history()).map(|token| *token as i32)
}
