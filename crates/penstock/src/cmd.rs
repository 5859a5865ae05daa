//! The commands: each one parses its arguments, calls one function of another crate, and prints the result.

pub(crate) mod backend;
pub(crate) mod bench;
pub(crate) mod bench_ssh;
pub(crate) mod check;
pub(crate) mod copy;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod dns;
pub(crate) mod doctor;
pub(crate) mod documents;
mod findings;
pub(crate) mod guardian;
pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod known_hosts;
pub(crate) mod lab;
pub(crate) mod otp;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod service;
pub(crate) mod ssh;
pub(crate) mod tls_grade;
pub(crate) mod tunnel;
pub(crate) mod user;
