//! Flags of the peers that ask for what is always so here: they are taken, so that a command line goes on working, and the
//! log says why they have no effect.

use clap::Args;

/// The flags. None of them is in the help.
#[derive(Args, Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct FamiliarArgs {
    /// Cached tokens in `usage`
    #[arg(long, hide = true)]
    enable_prompt_tokens_details: bool,
    /// `/load`
    #[arg(long, hide = true)]
    enable_server_load_tracking: bool,
    /// `x-request-id`
    #[arg(long, hide = true)]
    enable_request_id_headers: bool,
    /// `/tokenizer_info`
    #[arg(long, hide = true)]
    enable_tokenizer_info_endpoint: bool,
    /// Nothing of requests in the log
    #[arg(long, hide = true, alias = "no-enable-log-requests")]
    disable_log_requests: bool,
    /// No line per request in the log
    #[arg(long, hide = true)]
    disable_uvicorn_access_log: bool,
    /// Code of a checkpoint may run
    #[arg(long, hide = true)]
    trust_remote_code: bool,
    /// SGLang's metrics
    #[arg(long, hide = true)]
    enable_metrics: bool,
    /// SGLang's cached tokens in `usage`
    #[arg(long, hide = true)]
    enable_cache_report: bool,
}

impl FamiliarArgs {
    /// Flags that were given, and why they have no effect.
    pub fn notes(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let all = [
            (self.enable_prompt_tokens_details, "--enable-prompt-tokens-details", "usage always has them"),
            (self.enable_server_load_tracking, "--enable-server-load-tracking", "/load is always there"),
            (self.enable_request_id_headers, "--enable-request-id-headers", "answers always have their id"),
            (self.enable_tokenizer_info_endpoint, "--enable-tokenizer-info-endpoint", "it is always there"),
            (
                self.disable_log_requests,
                "--disable-log-requests",
                "requests are logged at the level debug only",
            ),
            (self.disable_uvicorn_access_log, "--disable-uvicorn-access-log", "there is no access log"),
            (self.trust_remote_code, "--trust-remote-code", "code of a checkpoint is never run"),
            (self.enable_metrics, "--enable-metrics", "/metrics is always there"),
            (self.enable_cache_report, "--enable-cache-report", "usage always has cached tokens"),
        ];
        all.into_iter().filter(|(given, ..)| *given).map(|(_, flag, why)| (flag, why))
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        familiar: FamiliarArgs,
    }

    #[test]
    fn every_familiar_flag_is_taken_and_explained_once() {
        let flags: Vec<String> =
            Cli::command().get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        assert!(!flags.is_empty());
        for flag in &flags {
            let given = Cli::try_parse_from(["serve", flag.as_str()]).unwrap().familiar;
            let notes: Vec<_> = given.notes().map(|(name, _)| name).collect();
            assert_eq!(notes, [flag.as_str()]);
        }
        assert_eq!(FamiliarArgs::default().notes().count(), 0);
    }
}
