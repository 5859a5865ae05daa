//! Takes backends down.

use crate::backend::{Availability, Backend};

/// Takes the backends down, one after the other; each is up again before the next goes down.
#[derive(Default)]
pub struct Outage {
    at: usize,
    down: Option<usize>,
}

impl Outage {
    /// Does the next step. Returns a text about it.
    pub fn next(&mut self, backends: &[Backend]) -> String {
        if let Some(down) = self.down.take() {
            backends[down].switch(Availability::On);
            return format!("{} is started again", backends[down].name);
        }
        let at = self.at % backends.len();
        backends[at].switch(Availability::Off);
        self.at += 1;
        self.down = Some(at);
        format!("{} is killed", backends[at].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;

    #[test]
    fn one_backend_is_down_at_a_time_and_each_has_its_turn() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let mut victim = Outage::default();
        let notes: Vec<_> = (0..10).map(|_| victim.next(&backends)).collect();
        assert_eq!(notes[0..3], ["tcp-1 is killed", "tcp-1 is started again", "tcp-2 is killed"]);
        assert_eq!(notes[7..10], ["unix-2 is started again", "tcp-1 is killed", "tcp-1 is started again"]);
    }
}
