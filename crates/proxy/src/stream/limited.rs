//! A stream with limits of bytes a second: `crates/proxy/src/bandwidth.rs`.

use std::task::{Context, Poll};

use socket2::SockRef;
use sys::tcp_info::{self, Presence};

use super::{SCRATCH, Stream, Transport};
use crate::bandwidth::{Limits, Pace, Wait};

impl Stream {
    /// Sets or removes the limits of the session that this stream of a client carries.
    pub(crate) fn limit(&mut self, limits: Option<Limits>) {
        match (&mut self.1, limits) {
            (None, None) => {}
            (None, limits) => self.1 = Some(Box::new(super::Extras { tap: None, limits })),
            (Some(extras), Some(limits)) => extras.limits = Some(limits),
            (Some(extras), None) if extras.tap.is_some() => extras.limits = None,
            (Some(_), None) => self.1 = None,
        }
    }

    /// Limits of the session; `None` also for the stream of a backend.
    pub(crate) fn limits(&self) -> Option<&Limits> {
        self.1.as_ref()?.limits.as_ref()
    }

    /// Limit of the bytes from this stream to `to`, one of which is that of the client.
    pub(crate) fn pace<'a>(&'a self, to: &'a Stream) -> Option<&'a Pace> {
        match self.limits() {
            Some(limits) => limits.up.as_ref(),
            None => to.limits()?.down.as_ref(),
        }
    }

    /// Whether neither stream has anything besides its transport.
    #[inline]
    pub(super) fn is_unlimited(&self, to: &Stream) -> bool {
        self.1.is_none() && to.1.is_none()
    }

    /// Most bytes to read at once from this stream for `to`.
    pub(super) fn piece(&self, to: &Stream) -> usize {
        self.pace(to).map_or(SCRATCH, Pace::piece)
    }

    /// Whether the peer has reset the connection, for a session that does not read now. Takes the error from the
    /// connection, so the session must end.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut transport = self.0.borrow_mut();
        let plain = match &mut *transport {
            Transport::Plain(plain) => &*plain,
            Transport::Tls(tls) => tls.get_ref().0,
            Transport::Outbound(outbound) => outbound.plain(),
            Transport::Http2(side) => return side.poll_gone(cx).map(drop),
            // What such a stream still has arrived before its end.
            Transport::Call(_) | Transport::Parked(_) | Transport::Lost => return Poll::Pending,
        };
        match SockRef::from(plain).take_error() {
            Ok(None) => Poll::Pending,
            Ok(Some(_)) | Err(_) => Poll::Ready(()),
        }
    }

    /// Looks after this receiver while a piece for it waits. That it has closed its connection, and not only ended its
    /// sending direction, is known when it answers a byte with a reset.
    pub(crate) fn look_after(&self, pace: &Pace) -> Wait {
        let presence = match self.descriptor() {
            // An HTTP/2 stream tells it by itself.
            0 => Presence::Here,
            descriptor => tcp_info::read(descriptor).map_or(Presence::Here, |info| info.presence),
        };
        match presence {
            Presence::Here => Wait::GoesOn,
            Presence::Ended => pace.ask_once(),
            Presence::Gone => Wait::Over,
        }
    }
}
