//! The endings of a run: each is written to the journal, then passed to the view.

use std::sync::Arc;
use std::time::Duration;

use hosts::fleet::ending::Ending;

use super::shared::Shared;

pub(super) struct Endings {
    pub(super) endings: Vec<Option<Ending>>,
    pub(super) shared: Arc<Shared>,
}

impl Endings {
    pub(super) fn close(&mut self, host: usize, ending: Ending, took: Duration) {
        let told = ending.clone();
        let out = self.shared.out.clone();
        let tell = move || out.ended(host, told, took);
        match &self.shared.journal {
            Some(journal) => journal.ended(host, &ending, tell),
            None => tell(),
        }
        self.endings[host] = Some(ending);
    }
}
