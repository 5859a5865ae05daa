//! Number of parallel hosts, time limits, and waves.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use fleet::run::{Limits, Parallel, Pause, Steps};
use hosts::fleet::waves::{StopIf, Waves};
use tokio::sync::Notify;

use crate::duration;
use crate::output::Failure;

/// Options for parallelism, time limits and waves.
#[derive(Debug, Clone, Default, Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Largest number of parallel hosts [default: adapts itself, up to 1,000]
    #[arg(long, short, value_name = "N", help_heading = "Pace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub parallel: Option<u32>,
    /// Time between two starts, in milliseconds or with a unit as in 1s [default: 0]
    #[arg(long, value_name = "MS", value_parser = duration::milliseconds, help_heading = "Pace")]
    pub delay: Option<u64>,
    /// Time limit of each step up to the start of the work on a host, in seconds or with a unit: ms, s, m, h [default:
    /// 10]
    #[arg(long, value_name = "SECONDS", value_parser = duration::seconds, help_heading = "Pace")]
    pub connect_timeout: Option<Duration>,
    /// Time limit of the work, in seconds or with a unit; after it a command is ended on the host, a copy is aborted
    /// [default: none]
    #[arg(long, short, value_name = "SECONDS", value_parser = duration::seconds, help_heading = "Pace")]
    pub timeout: Option<Duration>,
    /// A few hosts first: numbers of hosts, shares like 10%, and all, as in 1,10%,all; the hosts that are left come after the last one
    #[arg(long, value_name = "SIZES", help_heading = "Waves")]
    pub waves: Option<Waves>,
    /// Start no further wave if this is true: failed>2% (of all hosts that are done, after each wave), failed>3
    /// (hosts), or differs (not all outputs are the same). A host has failed if its command did not end with 0, for any
    /// reason
    #[arg(long, value_name = "CONDITION", requires = "waves", help_heading = "Waves")]
    pub stop_if: Option<StopIf>,
    /// Wait for Enter between waves, or for this many seconds (or with a unit)
    #[arg(long, value_name = "SECONDS", requires = "waves", num_args = 0..=1, require_equals = true, value_parser = duration::seconds, help_heading = "Waves")]
    pub pause: Option<Option<Duration>>,
    /// Id of the run that this one repeats, as a whole or in part.
    #[arg(skip)]
    pub again: Option<String>,
}

impl Arguments {
    /// Time limit of each step up to the start of the work.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
    }

    /// Whether the run asks for Enter between waves.
    pub(crate) fn waits_for_enter(&self) -> bool {
        self.waves.is_some() && self.pause == Some(None)
    }

    /// Limits for a machine that can hold `sessions` sessions.
    pub(crate) fn limits(&self, sessions: usize) -> Limits {
        Limits {
            parallel: self.parallel.map_or(Parallel::Adaptive, |count| Parallel::Fixed(count as usize)),
            sessions: sessions.min(self.parallel.map_or(MOST, |count| count as usize)),
            delay: Duration::from_millis(self.delay.unwrap_or(0)),
        }
    }

    /// Returns the waves, if there are any. The keyboard thread notifies `enter` when the user presses Enter.
    pub(crate) fn steps(&self, enter: &Arc<Notify>) -> Result<Option<Steps>, Failure> {
        let Some(waves) = self.waves.clone() else { return Ok(None) };
        let pause = match self.pause {
            None => Pause::None,
            Some(Some(time)) => Pause::For(time),
            Some(None) if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => {
                Pause::Enter(Arc::clone(enter))
            }
            Some(None) => {
                return Err(Failure::usage(
                    "--pause waits for Enter, and there is no terminal\n  hint: --pause=30 waits for 30 seconds",
                ));
            }
        };
        Ok(Some(Steps { waves, stop_if: self.stop_if, pause }))
    }
}

const MOST: usize = 1_000;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
