//! The ring of the socket, through which frames come to this process.

use std::os::fd::AsFd;

use state::ending::Ending;
use state::events::Level;

use super::Server;

impl Server {
    /// Lets the kernel write frames into memory of this process, if it forwards them.
    pub(super) fn use_ring(&mut self) {
        if self.kernel.is_some() {
            return;
        }
        if let Err(error) = self.batch.use_ring(self.socket.get_ref().as_fd()) {
            self.tell_ring(&format!("the kernel gives no ring for packets: {error}"));
        }
        // What was lost before is no sign that this ring takes nothing.
        if let Ok(lost @ 1..) = self.socket.get_ref().lost() {
            self.drop_packets(lost.into(), Ending::PacketLost);
        }
    }

    /// Counts the frames that the kernel could not give. A ring that takes no frames any more is left.
    pub(super) fn look_at_losses(&mut self) {
        let socket = self.socket.clone();
        // The interface was down: the tick sees that, and a send would be told it instead of what becomes of its frame.
        let _ = socket.get_ref().take_error();
        let Ok(lost) = socket.get_ref().lost() else { return };
        if lost > 0 {
            self.drop_packets(lost.into(), Ending::PacketLost);
        }
        if self.batch.is_stuck(lost) {
            let left = self.batch.leave_ring(socket.get_ref().as_fd());
            let how = left.map_or_else(|error| format!(", and cannot be left: {error}"), |()| String::new());
            self.tell_ring(&format!(
                "the ring of the kernel takes no packets any more after one that it cannot describe{how}"
            ));
        }
    }

    fn tell_ring(&self, why: &str) {
        let message =
            format!("{why}; packets are received with a system call for some of them, which costs more");
        self.worker.front.state.events.record(Level::Warning, self.subject(), message);
    }
}
