"""promotion: a challenger that passes the gate becomes champion; rollback; copies."""
