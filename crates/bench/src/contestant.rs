//! Contestants: each is started once per group, and then runs the trials of the group.

use std::fmt;

use crate::context::Context;
use crate::error::Error;
use crate::load::gauge::Window;
use crate::sample::Sample;

pub struct Contestant {
    /// Name within the group: `haproxy`.
    pub name: String,
    /// Program and version; `None` if the contestant is not one program.
    pub version: Option<String>,
    /// Starts the contestant. It runs through all rounds and ends when dropped.
    pub start: Starter,
}

pub type Starter = Box<dyn Fn(&Context) -> Result<Box<dyn Running>, Error>>;

pub trait Running {
    /// Returns the generated configuration for the report; empty if there is none.
    fn configuration(&self) -> String;

    /// Runs the work for the length of `window` and returns its figures. Called once as a warm-up, whose sample is
    /// discarded, then once per round.
    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error>;

    /// Roots of process trees that work for the contestant but are children of another process, as containers are of
    /// Docker's engine. Their CPU time is not foreign load.
    fn elsewhere(&self) -> Vec<i32> {
        Vec::new()
    }
}

impl Contestant {
    pub fn new<R: Running + 'static>(
        name: impl Into<String>,
        start: impl Fn(&Context) -> Result<R, Error> + 'static,
    ) -> Self {
        let start: Starter = Box::new(move |context| Ok(Box::new(start(context)?)));
        Contestant { name: name.into(), version: None, start }
    }

    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }
}

impl fmt::Debug for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contestant")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
