//! Keeps what hosts print, for a command that reads it itself.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hosts::fleet::ending::Ending;

use crate::run::happening::Stream;
use crate::run::output::View;

/// Output of all hosts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Kept(Arc<Mutex<Vec<Printed>>>);

/// Output of one host, up to a limit.
#[derive(Debug, Clone, Default)]
pub struct Printed {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Most bytes that are kept of the two streams of a host.
const MOST_OUTPUT: usize = 8 * 1024 * 1024;
const MOST_ERRORS: usize = 16 * 1024;

impl Kept {
    #[must_use]
    pub fn of(hosts: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Printed::default(); hosts])))
    }

    /// Takes what was printed so far, in the order of the hosts.
    #[must_use]
    pub fn take(&self) -> Vec<Printed> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl View for Kept {
    fn output(&mut self, host: usize, stream: Stream, bytes: &[u8], _: &mut dyn Write) -> io::Result<()> {
        if let Some(printed) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(host) {
            let (kept, most) = match stream {
                Stream::Stdout => (&mut printed.stdout, MOST_OUTPUT),
                Stream::Stderr => (&mut printed.stderr, MOST_ERRORS),
            };
            let room = most.saturating_sub(kept.len()).min(bytes.len());
            kept.extend_from_slice(&bytes[..room]);
        }
        Ok(())
    }

    fn ended(&mut self, _: usize, _: &Ending, _: Duration, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
