//! Programs before and after their start.

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::{Launch, Process};

/// A running program and its configuration.
#[derive(Debug)]
pub struct Target {
    /// Root of the program's process tree.
    pub process: Process,
    /// Configuration for the report.
    pub configuration: String,
    pub address: Address,
}

/// A program before its start.
#[derive(Debug)]
pub struct Prepared {
    pub launch: Launch,
    /// Configuration file or command line for the report.
    pub configuration: String,
}

impl Prepared {
    /// Starts the program and waits until it listens.
    pub fn start(self, context: &Context, listen: &Address) -> Result<Target, Error> {
        let mut process = Process::start(context, &self.launch)?;
        process.wait_listening(context, listen)?;
        Ok(Target { process, configuration: self.configuration, address: listen.clone() })
    }
}

/// Returns `ADDR:PORT`, or an error for a program without support for Unix sockets at this place.
pub(super) fn tcp_only(program: &str, what: &str, address: &Address) -> Result<String, Error> {
    match address {
        Address::Tcp(address) => Ok(address.to_string()),
        _ => Err(unsupported(program, what)),
    }
}

pub(super) fn unsupported(program: &str, what: &str) -> Error {
    Error::Unsupported {
        what: format!("{what} with {program}"),
        why: "the program does not have it".to_owned(),
    }
}
