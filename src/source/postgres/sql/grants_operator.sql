-- What an operator's role needs beside a relay's: putting events back, telling owners, leaving a trace.
grant insert on {schema}.event, {schema}.control, {schema}.audit to {role};
