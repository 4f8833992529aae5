-- Tells the owners that something was paused or resumed.
insert into {schema}.control (command, created_by) values ('pauses', $1)
