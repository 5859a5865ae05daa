//! Answers an operator's questions about a worker.

use std::rc::Rc;

use super::Worker;
use crate::listing::Whence;
use crate::question::Question;
use crate::tcp;
use crate::udp::mailbox::FlowQuestion;

impl Worker {
    pub(super) fn answer(self: &Rc<Self>, question: Question) {
        match question {
            Question::Balancer { snapshot, pool, answer } => {
                // The operator may have left.
                let _ = answer.send(self.balancers.copy(&snapshot, pool));
            }
            Question::Sessions { asked, from: Whence::Connections(from), answer } => {
                let _ = answer.send(self.scan(&asked, from));
            }
            Question::Sessions { asked, from: Whence::Flows { socket, from }, answer } => {
                self.mailboxes.ask(socket, FlowQuestion::Scan { asked, from, answer });
            }
            Question::Tcp { places, answer } => {
                let _ = answer.send(self.tcp_of(&places));
            }
            Question::Kill { targets, answer } => match targets.first().and_then(|one| one.place.socket()) {
                Some(socket) => self.mailboxes.ask(socket, FlowQuestion::Kill { targets, answer }),
                None => drop(answer.send(self.end_sessions(&targets))),
            },
            Question::Adopt(adoption) => tcp::adopt(self, *adoption),
            Question::Count(counts) => counts.add(&self.front.state),
            Question::Past { id, answer } => {
                let _ = answer.send(self.past.borrow().find(&id).map(Box::new));
            }
        }
    }
}
