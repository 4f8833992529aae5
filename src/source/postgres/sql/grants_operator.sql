-- What an operator's role needs beside a relay's: putting events back, pausing, telling owners, leaving a
-- trace.
grant insert on {schema}.event, {schema}.control, {schema}.audit to {role};
grant insert, update, delete on {schema}.pause to {role};
