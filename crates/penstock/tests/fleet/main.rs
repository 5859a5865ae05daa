//! Commands and files on many hosts, and the lab.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod bystanders;
mod command_line;
mod copy;
mod lab;
mod lab_faults;
mod lab_inside;
mod mpssh;
mod people;
mod rights;
mod run;
mod run_again;
mod run_lab;
mod run_stuck;
mod run_views;
