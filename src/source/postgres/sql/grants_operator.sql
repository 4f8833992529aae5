-- What an operator's role needs beside a viewer's. One statement a command: a new command adds its own.
-- discarded requeue: the events leave one table for the other, whole, and owners are told.
grant insert on {schema}.event to {role};
grant insert, delete on {schema}.delivery to {role};
grant delete on {schema}.discarded to {role};
grant insert on {schema}.control to {role};
-- discarded drop.
grant delete on {schema}.discarded to {role};
-- Every one of them leaves a trace.
grant insert on {schema}.audit to {role};
