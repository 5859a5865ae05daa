//! The process: start, reload, stop, control socket, admin listener.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod admin;
mod break_out;
mod capture;
mod completions;
mod confinement;
mod control;
mod control_access;
mod default_user;
mod drain;
mod first_minute;
mod follow;
mod include;
mod json;
mod keepalived;
mod kept;
mod kill_request;
mod live;
mod live_limits;
mod live_load;
mod no_file;
mod operator;
mod pending;
mod pid_file;
mod recent;
mod reload;
mod rights;
mod running;
mod sessions;
mod status_page;
mod supervisor;
mod syslog;
mod top;
mod which_server;
mod why;
