//! `protocol = "dsr"` with the real binary: a client, a balancer and two servers in network namespaces on one bridge.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod backend_host;
mod balancer;
mod beside;
mod changes;
mod commit_confirm;
mod counted;
mod doctor;
mod downloads;
mod every_port;
mod filter;
mod instances;
mod kernel;
mod limits;
mod link;
mod link_returns;
mod lossless;
mod measured;
mod moves;
mod neighbour;
mod network;
mod operators;
mod other_form;
mod paths;
mod quick;
mod refused;
mod ring;
mod survival;
mod take_over;
mod tarpit;
mod trace;
mod traffic;
mod tunnel;
mod vip;
mod vip_http;
mod wire;
