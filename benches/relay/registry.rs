//! Everything that can be measured, in the order in which it is.

use crate::arguments::Arguments;
use crate::measurement::Group;
use crate::{ceilings, costs, drains, files, floor, latency, waits, writers};

pub fn groups(arguments: &Arguments) -> Vec<Group> {
    vec![
        ceilings::group(),
        floor::group(),
        drains::group(),
        drains::modes(),
        files::group(),
        latency::group(),
        waits::group(arguments.large),
        writers::group(),
        costs::group(),
    ]
}
