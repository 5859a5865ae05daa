//! A reverse proxy with small replies: what does it add to a request?

use crate::context::Context;
use crate::error::Error;
use crate::scenario::{Plan, Scenario};

/// The scenario `http`.
#[derive(Debug)]
pub struct Http;

impl Scenario for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn question(&self) -> &'static str {
        "Reverse proxies with small replies, over TCP and Unix backends: what does a request cost?"
    }

    fn plan(&self, _context: &Context) -> Result<Plan, Error> {
        Ok(Plan::default())
    }
}
