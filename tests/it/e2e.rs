//! End to end: committed events of a real database reach a real destination, whatever happens on the way.

mod bench;
mod broker;
mod crash_points;
mod database;
mod failover;
mod feeds;
mod gaps;
mod keys;
mod lanes;
mod ledger;
mod load;
mod network;
mod operate;
mod outages;
mod poison;
mod process;
mod quiet;
mod sharing;
mod supervision;
mod verify;
mod writers;
