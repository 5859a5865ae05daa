//! `http2` of a listener and of a pool.

use std::time::Duration;

use logic::flood_delay;
use logic::http2::flood::{Allowance, Allowances};
use logic::room;

use super::parser::{Parser, Zero, small};
use crate::raw::{RawBackendHttp2, RawFlood, RawListener, TextOr};
use crate::types::{BackendHttp2, Http2};

const KIB: u64 = 1024;

/// The defaults of `RawHttp2`, repeated here for `http2 = "on"`, which has no table with defaults.
const SEND_BUFFER: u64 = 512 * KIB;
const RECEIVE_WINDOW: u64 = 1024 * KIB;
const STREAM_WINDOW: u64 = 64 * KIB;
const HELD_HEADS: u64 = 1024 * KIB;
const FLOOD_DELAY: Duration = Duration::from_secs(1);

/// The defaults of `RawBackendHttp2`, likewise.
const OF_BACKENDS: BackendHttp2 = BackendHttp2 {
    streams: 128,
    stream_window: 64 * 1024,
    narrow_window: 4 * 1024,
    send_buffer: 32 * 1024,
    response_head: 256 * 1024,
    held_heads: 4 * 1024 * 1024,
    interim: 64 * 1024,
    flood: Allowances::DEFAULT,
};

impl Parser<'_> {
    pub(super) fn backend_http2(&mut self, raw: &TextOr<String, RawBackendHttp2>) -> Option<BackendHttp2> {
        let TextOr::Table(table) = raw else { return Some(OF_BACKENDS) };
        let stream_window = self.size(&table.stream_window, 4 * KIB, 1024 * KIB);
        let narrow_window = self.size(&table.narrow_window, KIB, 1024 * KIB);
        let send_buffer = self.size(&table.send_buffer, KIB, 1024 * 1024 * KIB);
        let response_head = self.size(&table.response_head, KIB, 1024 * 1024 * KIB);
        let held_heads = self.size(&table.held_heads, 16 * KIB, 1024 * 1024 * KIB);
        let interim = self.size(&table.interim, room::LEAST_INTERIM as u64, 1024 * 1024 * KIB);
        Some(BackendHttp2 {
            streams: small(table.streams.as_ref()?.value),
            stream_window: u32::try_from(stream_window?).ok()?,
            narrow_window: u32::try_from(narrow_window?).ok()?,
            send_buffer: usize::try_from(send_buffer?).ok()?,
            response_head: u32::try_from(response_head?).ok()?,
            held_heads: usize::try_from(held_heads?).ok()?,
            interim: usize::try_from(interim?).ok()?,
            flood: table.flood.as_ref().map_or_else(Allowances::default, |flood| allowances(&flood.value)),
        })
    }

    pub(super) fn http2(&mut self, raw: &RawListener) -> Option<Http2> {
        let streams = raw.limits.as_ref()?.value.streams.as_ref()?;
        let (send_buffer, receive_window, stream_window, held_heads, flood, flood_delay) =
            match &raw.http2.as_ref()?.value {
                TextOr::Text(word) if word == "off" => return Some(Http2::Off),
                TextOr::Text(_) => (
                    Some(SEND_BUFFER),
                    Some(RECEIVE_WINDOW),
                    Some(STREAM_WINDOW),
                    Some(HELD_HEADS),
                    Allowances::default(),
                    Some(FLOOD_DELAY),
                ),
                TextOr::Table(table) => (
                    self.size(&table.send_buffer, 16 * KIB, 1024 * 1024 * KIB),
                    self.size(&table.receive_window, 64 * KIB, 1024 * 1024 * KIB),
                    self.size(&table.stream_window, 16 * KIB, 1024 * 1024 * KIB),
                    self.size(&table.held_heads, 16 * KIB, 1024 * 1024 * KIB),
                    table.flood.as_ref().map_or_else(Allowances::default, |flood| allowances(&flood.value)),
                    self.time(&table.flood_delay, Zero::Allowed, flood_delay::MEMORY),
                ),
            };
        Some(Http2::On {
            streams: small(streams.value),
            send_buffer: usize::try_from(send_buffer?).ok()?,
            receive_window: u32::try_from(receive_window?).ok()?,
            stream_window: u32::try_from(stream_window?).ok()?,
            held_heads: usize::try_from(held_heads?).ok()?,
            flood,
            flood_delay: flood_delay?,
        })
    }
}

fn allowances(raw: &RawFlood) -> Allowances {
    Allowances::new(|flood| {
        let default = flood.default_allowance();
        let Some(said) = raw.of(flood) else { return default };
        Allowance {
            burst: said.value.burst.as_ref().map_or(default.burst, |burst| small(burst.value)),
            per_second: said.value.per_second.as_ref().map_or(default.per_second, |rate| small(rate.value)),
        }
    })
}
