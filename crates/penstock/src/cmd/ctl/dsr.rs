//! `penstock ctl dsr`: services of `dsr` listeners.

use clap::{Args, Subcommand};

use super::word::parse_word;

mod detach;
mod trace;

pub(super) use detach::Detach;
pub(super) use trace::Trace;

#[derive(Debug, Args)]
pub(super) struct Dsr {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Each service: what forwards its packets, flows, packets and drops, and its backends with Ethernet addresses and
    /// whether they accept the virtual address, as of up to a second ago
    Status,
    /// What would happen with a packet now, and why: whether its flow is remembered, which backend the table has for it,
    /// and the state of the backends; changes nothing
    #[command(after_help = EXAMPLES)]
    Explain {
        /// Address and port of the client, as 203.0.113.7:40000; an IPv6 address is in brackets
        #[arg(value_name = "SOURCE", value_parser = parse_word)]
        from: String,
        /// Virtual address and port
        #[arg(value_name = "DESTINATION", value_parser = parse_word)]
        to: String,
        /// tcp or udp
        #[arg(value_name = "TRANSPORT", value_parser = parse_word)]
        transport: String,
    },
    /// Write packets of services into a file for Wireshark, tshark and tcpdump (pcapng), each with a comment: what was
    /// decided about it, and why
    #[command(after_help = TRACES)]
    Trace(Trace),
    /// Show the programs of this network namespace that forward packets in the kernel, and take away those that no process
    /// has: of a server with at-stop = "keep" that was stopped, or one that was killed. As root; asks no server
    #[command(after_help = DETACHES)]
    Detach(Detach),
}

const EXAMPLES: &str = "\
Examples:
  penstock ctl dsr explain 203.0.113.7:40000 192.0.2.10:80 tcp";

const TRACES: &str = "\
Examples:
  penstock ctl dsr trace --to video.pcapng --service video --verdict dropped --packets 100
  penstock ctl dsr trace --to - --from 203.0.113.0/24 --for 10s | tshark -r - -T fields -e frame.comment";

const DETACHES: &str = "\
Examples:
  penstock ctl dsr detach          what is there, and whose it is
  penstock ctl dsr detach --all

Exit codes: 0 done; 1 a program stays, is one of a server that runs, or there is no such program.";

impl Dsr {
    /// Words of the control command.
    pub(super) fn words(&self) -> Vec<String> {
        match &self.command {
            Command::Status => vec!["status".to_owned()],
            Command::Explain { from, to, transport } => {
                ["explain", from, to, transport].map(str::to_owned).to_vec()
            }
            Command::Trace(trace) => trace.words(),
            // Not sent: `run` has it.
            Command::Detach(_) => vec!["status".to_owned()],
        }
    }

    /// What is written into a file.
    pub(super) fn trace(&self) -> Option<&Trace> {
        match &self.command {
            Command::Trace(trace) => Some(trace),
            Command::Status | Command::Explain { .. } | Command::Detach(_) => None,
        }
    }

    /// What is done without a server.
    pub(super) fn detach(&self) -> Option<&Detach> {
        match &self.command {
            Command::Detach(detach) => Some(detach),
            Command::Status | Command::Explain { .. } | Command::Trace(_) => None,
        }
    }
}
