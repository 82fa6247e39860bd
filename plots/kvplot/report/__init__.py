"""One HTML page of a results file: page.py puts it together, tables.py and charts.py make its data, report.js shows it."""
