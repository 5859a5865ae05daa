//! The fleet: a command on many hosts at once, and tunnels that are proved before a job runs through them.

pub mod groups;
pub mod run;
pub mod tunnel;
