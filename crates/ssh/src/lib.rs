//! SSH: connections to hosts whose identity is proved, authentication, commands, forwards, files; and a fleet of
//! in-process hosts to try them on. The only crate that names the SSH library.

pub mod lab;
